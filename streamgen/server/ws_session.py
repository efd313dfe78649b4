"""One accepted WebSocket: feeds its messages to the protocol, and lets relays write to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from starlette.types import Receive, Send

from streamgen.errors import (
    DrainingError,
    EngineDeadError,
    QueueFullError,
    RequestError,
    ResumedElsewhereError,
    StreamgenError,
)
from streamgen.server.workers import Workers
from streamgen.server.ws_protocol import (
    Cancel,
    Close,
    CloseCode,
    Create,
    Frame,
    Protocol,
    Reply,
    RequestFrames,
    Resume,
    clip_reason,
    decode_frame,
)
from streamgen.server.ws_relay import Backend, Relay
from streamgen.server.ws_replay import ReplayBuffer
from streamgen.server.ws_resume import Key, ResumeStore

INLINE_CHARS = 2**16
"""Longer messages are taken apart beside the loop."""


@dataclass(frozen=True, slots=True)
class _Open:
    id: str
    relay: Relay
    key: Key | None
    """Under which the request is kept for resuming; None if it is not."""
    frames: RequestFrames


class Session:
    """Owned by the event loop; one coroutine, `run`, reads the socket, and every relay attached to it writes.

    Writers need no queue between them and the socket: each waits for its own frame, while the engine merges what
    comes meanwhile, within its bound. So a reader that lags holds up nobody else and costs bounded memory.
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        protocol: Protocol,
        backend: Backend,
        store: ResumeStore,
        *,
        workers: Workers,
        authenticate: Callable[[], str],
        correlation_id: str,
        replay_bytes: int,
        on_end: Callable[[Relay], None],
    ) -> None:
        """`authenticate` gives the tenant of the socket's key, or raises AuthenticationError. It is asked again for
        each request, so that a revoked key gets no more. `on_end` is told of every request that has ended.
        """
        self._receive = receive
        self._send = send
        self._protocol = protocol
        self._backend = backend
        self._store = store
        self._workers = workers
        self._authenticate = authenticate
        self._correlation_id = correlation_id
        self._replay_bytes = replay_bytes
        self._on_end = on_end
        self._served = 0
        self._farewells: set[asyncio.Task[None]] = set()
        self._open: dict[str, _Open] = {}
        self._draining = False
        self._closed = False

    async def run(self) -> None:
        """Serve the socket until it closes, then detach or abort what is open on it."""
        try:
            await self.send(self._protocol.greeting())
            while not self._closed and await self._serve_one():
                pass
        except OSError:
            pass  # The socket went while we wrote to it, which ends it as well as a close frame does.
        finally:
            self._closed = True
            for open_ in list(self._open.values()):
                self._detach(open_)

    async def _serve_one(self) -> bool:
        """Serve the next message; False if there is none. Apart from the loop over them, so that nothing has a hold on
        a long message while the next one is waited for.
        """
        message = await self._receive()
        if message["type"] != "websocket.receive":
            return False
        text = message.get("text")
        frame = await self._decoded(text if text is not None else message["bytes"])
        if self._closed:
            # By a relay, while the message was awaited: nobody would read what it begins.
            return False
        event = self._protocol.take(frame)
        match event:
            case Create():
                await self._create(event)
            case Resume():
                await self._resume(event)
            case Cancel():
                self._open[event.id].relay.cancel()
            case Reply(frame=reply):
                await self.send(reply)
            case Close(code=code, reason=reason):
                await self.close(code, reason)
        return True

    async def _decoded(self, message: str | bytes) -> Frame:
        limit = self._protocol.max_message_bytes
        if len(message) <= INLINE_CHARS:
            return decode_frame(message, limit)
        try:
            return await self._workers.run(len(message), decode_frame, message, limit)
        except QueueFullError as error:
            # Nobody knows yet whose request this is, so that there is none to refuse.
            return Close(CloseCode.TRY_AGAIN_LATER, error.message)

    async def send(self, frame: str) -> None:
        if self._closed:
            raise ConnectionResetError("The socket is closed.")
        await self._send({"type": "websocket.send", "text": frame})

    async def close(self, code: int, reason: str) -> None:
        if not self._closed:
            self._closed = True
            await self._send({"type": "websocket.close", "code": code, "reason": clip_reason(reason)})

    async def ended(self, request_id: str, error: StreamgenError | None) -> None:
        """A relay has sent the last frame of a request."""
        self._forget(request_id)
        if isinstance(error, EngineDeadError):
            await self.close(CloseCode.INTERNAL, error.message)
        await self._close_if_drained()

    async def drain(self) -> None:
        """Take no new requests, and close with 1001 once none is open."""
        self._draining = True
        await self._close_if_drained()

    async def cut_off(self) -> None:
        """End what still runs with an error, and close with 1001."""
        self._draining = True
        for open_ in list(self._open.values()):
            await open_.relay.fail(DrainingError("The server shut down before the request was finished."))
        await self.close(CloseCode.GOING_AWAY, "The server is shutting down.")

    def give_up(self, relay: Relay) -> None:
        """Another socket goes on with this request."""
        for open_ in [open_ for open_ in self._open.values() if open_.relay is relay]:
            self._forget(open_.id)
            frame = open_.frames.error(ResumedElsewhereError("Another reader goes on with this request."))
            # This socket may be stuck, and whoever took over must not wait for it.
            farewell = asyncio.ensure_future(self._send_if_open(frame))
            self._farewells.add(farewell)
            farewell.add_done_callback(self._farewells.discard)

    async def _create(self, event: Create) -> None:
        tenant = await self._admit(event)
        if tenant is None:
            return
        key = (self._protocol.session, event.id) if event.resumable else None
        self._served += 1
        relay = Relay(
            event,
            self._backend,
            tenant=tenant,
            correlation_id=f"{self._correlation_id}-{self._served}",
            replay=None if key is None else ReplayBuffer(self._replay_bytes),
            on_end=partial(_ended, self._on_end, self._store, key),
        )
        self._open[event.id] = _Open(event.id, relay, key, RequestFrames(event.kind, event.id))
        relay.attach(self)
        if key is not None:
            self._store.add(key, relay, tenant)

    async def _resume(self, event: Resume) -> None:
        tenant = await self._admit(event)
        if tenant is None:
            return
        key = (event.session, event.id)
        try:
            relay = self._store.claim(key, tenant, event.after)
        except StreamgenError as error:
            await self._refuse(event, error)
            return
        if isinstance(relay.sink, Session):
            relay.sink.give_up(relay)
        self._open[event.id] = _Open(event.id, relay, key, RequestFrames(event.kind, event.id))
        relay.attach(self, event.after)

    async def _admit(self, event: Create | Resume) -> str | None:
        """The tenant, if the socket may begin something now; otherwise the client is told why not."""
        try:
            tenant = self._authenticate()
        except RequestError as error:
            await self._refuse(event, error)
            await self.close(CloseCode.POLICY, error.message)
            return None
        if self._draining:
            await self._refuse(event, DrainingError("The server is shutting down."))
            return None
        return tenant

    async def _refuse(self, event: Create | Resume, error: StreamgenError) -> None:
        self._protocol.end(event.id)
        await self.send(RequestFrames(event.kind, event.id).error(error))

    def _forget(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self._protocol.end(request_id)

    def _detach(self, open_: _Open) -> None:
        """The socket is gone: keep what is resumable for a while, and abort the rest."""
        relay = open_.relay
        if relay.sink not in (None, self):
            return
        if open_.key is not None and self._store.release(open_.key):
            relay.detach()
        else:
            relay.abandon()

    async def _send_if_open(self, frame: str) -> None:
        with suppress(OSError):
            await self.send(frame)

    async def _close_if_drained(self) -> None:
        if self._draining and not self._open:
            await self.close(CloseCode.GOING_AWAY, "The server is shutting down.")


def _ended(on_end: Callable[[Relay], None], store: ResumeStore, key: Key | None, relay: Relay) -> None:
    # Not a method: a resumable request outlives its session, and must not keep it alive.
    if key is not None:
        store.release(key)
    on_end(relay)
