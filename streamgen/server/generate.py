"""POST /v1/chat/completions and /v1/completions, and the same for other transports."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from streamgen.engine.client import EngineClient
from streamgen.server.answer import answer_json, collect_unless_gone
from streamgen.server.chunks import ChunkRenderer, dump_json
from streamgen.server.exchange import Exchange, of
from streamgen.server.generation import Generation, start
from streamgen.server.kept_stream import KeptStream
from streamgen.server.kind import Kind
from streamgen.server.prepare import Prepared, prepare
from streamgen.server.sse import send_events, send_kept_events
from streamgen.server.sse_frames import HEAD, TAIL
from streamgen.server.state import ServerState


class GenerateEndpoint:
    """One of the two, as an ASGI app. Nothing of the response is sent before the engine has taken the request."""

    def __init__(self, state: ServerState, kind: Kind) -> None:
        self._state = state
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = self._state
        # Before the body is read: a server that takes no requests should say so at once.
        state.backend()
        engine, prepared = await self._prepared(scope, receive)
        exchange = of(scope)
        answer_id, created = self._kind.id_prefix + state.new_id(), int(state.clock())
        streams = start(engine, prepared, tenant=exchange.tenant, correlation_id=exchange.request_id)
        renderer = ChunkRenderer(prepared, answer_id=answer_id, created=created, head=HEAD, tail=TAIL)
        generation = Generation(streams, renderer)
        exchange.model = prepared.model
        try:
            if prepared.event_ids:
                await self._send_kept(prepared, generation, answer_id, scope, receive, send)
                return
            if prepared.stream:
                await send_events(
                    generation,
                    scope,
                    receive,
                    send,
                    include_usage=prepared.include_usage,
                    keep_alive=state.config.sse_keep_alive_interval,
                )
                return
            choices = await collect_unless_gone(prepared, generation, receive)
            answer = answer_json(prepared, choices, generation, answer_id=answer_id, created=created)
        finally:
            _note(exchange, generation)
        await Response(dump_json(answer), media_type="application/json")(scope, receive, send)

    async def _prepared(self, scope: Scope, receive: Receive) -> tuple[EngineClient, Prepared]:
        """Apart from the rest, so that nothing has a hold on the body while the answer is made."""
        state = self._state
        async with state.bodies.received(scope, receive) as body:
            engine, serving = state.backend()
            return engine, await state.workers.run(len(body), prepare, self._kind, body, serving)

    async def _send_kept(
        self, prepared: Prepared, generation: Generation, stream_id: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        config, streams = self._state.config, self._state.streams
        stream = KeptStream(
            generation,
            tenant=of(scope).tenant,
            include_usage=prepared.include_usage,
            max_bytes=config.stream_buffer_bytes,
        )
        reader = stream.attach(0)
        streams.add(stream_id, stream)
        try:
            await send_kept_events(stream, reader, receive, send, keep_alive=config.sse_keep_alive_interval)
        finally:
            streams.leave(stream_id, stream, reader)


async def start_chunks(
    state: ServerState, kind: Kind, body: bytes, *, tenant: str, correlation_id: str
) -> tuple[Prepared, Generation]:
    """A body as a Generation whose chunks are bare JSON objects, for a transport with frames of its own.

    Raises StreamgenError if the request is refused. `stream` in the body does not matter.
    """
    engine, serving = state.backend()
    with state.held.open() as hold:
        hold.resize(len(body))
        prepared = await state.workers.run(len(body), prepare, kind, body, serving, always_streams=True)
    streams = start(engine, prepared, tenant=tenant, correlation_id=correlation_id)
    renderer = ChunkRenderer(prepared, answer_id=kind.id_prefix + state.new_id(), created=int(state.clock()))
    return prepared, Generation(streams, renderer)


def _note(exchange: Exchange, generation: Generation) -> None:
    usage = generation.usage
    exchange.prompt_tokens = usage.prompt_tokens
    exchange.completion_tokens = usage.completion_tokens
    exchange.finish_reason = generation.finish_reason
