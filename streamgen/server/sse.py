"""A Generation as a response of server-sent events; and a KeptStream, whose events have ids."""

from __future__ import annotations

import structlog
from starlette.types import Receive, Scope, Send

from streamgen.errors import ResumedElsewhereError, SlowReaderError, StreamgenError
from streamgen.server.connection import EventConnection
from streamgen.server.error_responses import unforeseen
from streamgen.server.exchange import of
from streamgen.server.generation import Generation
from streamgen.server.kept_stream import KeptStream, Reader
from streamgen.server.sse_frames import DONE, error_event

log = structlog.get_logger(__name__)


async def send_events(
    generation: Generation, scope: Scope, receive: Receive, send: Send, *, include_usage: bool, keep_alive: float
) -> None:
    """Sends what the generation, whose renderer frames events, has to say. If the client leaves, it is aborted."""
    connection = EventConnection(receive, send, keep_alive=keep_alive, on_gone=generation.abort)
    last = b""
    try:
        async with connection.watched():
            try:
                await _relay(generation, connection)
                if include_usage:
                    last = generation.renderer.usage(generation.usage)
            except StreamgenError as error:
                last = error_event(error)
            except Exception:
                log.exception("stream_failed", request_id=of(scope).request_id)
                last = error_event(unforeseen())
    finally:
        await generation.close()
    await connection.end(last + DONE)


async def _relay(generation: Generation, connection: EventConnection) -> None:
    get, write = generation.get, connection.write
    while events := await get():
        if connection.gone:
            return
        await write(events[0] if len(events) == 1 else b"".join(events))


async def send_kept_events(
    stream: KeptStream, reader: Reader, receive: Receive, send: Send, *, keep_alive: float
) -> None:
    """Sends a kept stream's events from `reader`'s position on. If the client leaves, the stream goes on."""
    connection = EventConnection(receive, send, keep_alive=keep_alive, on_gone=reader.news.set)
    last = b""
    async with connection.watched():
        while not connection.gone:
            reader.news.clear()
            if reader.replaced:
                last = error_event(ResumedElsewhereError("Another connection goes on with this stream.")) + DONE
                break
            events = stream.replay.after(reader.position)
            if events is None:
                last = error_event(SlowReaderError("The reader fell too far behind; the request was ended.")) + DONE
                break
            if events:
                await connection.write("".join(events).encode())
                stream.sent(reader, len(events))
            elif stream.ended:
                break
            else:
                await reader.news.wait()
    await connection.end(last)
