"""Server-sent events: a Generation as an ASGI response.

One coroutine reads and writes; a second one does nothing but wait for the client to leave, or for a silence that is
long enough for a heartbeat. A departure is learned from `receive()` alone: `send()` does not tell.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog
from starlette.types import Receive, Scope, Send

from streamgen.errors import StreamgenError
from streamgen.server.chunks import dump_json
from streamgen.server.error_responses import unforeseen
from streamgen.server.exchange import of
from streamgen.server.generation import Generation

HEAD = b"data: "
TAIL = b"\n\n"
DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": keep-alive\n\n"
"""A comment, which readers of server-sent events skip."""

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would collect the events otherwise.
    (b"x-accel-buffering", b"no"),
]

log = structlog.get_logger(__name__)


def error_event(error: StreamgenError) -> bytes:
    return HEAD + dump_json(error.body()) + TAIL


class EventStream:
    """Sends what a Generation, whose renderer frames with HEAD and TAIL, has to say. `keep_alive` in seconds."""

    def __init__(self, generation: Generation, *, include_usage: bool, keep_alive: float) -> None:
        self._generation = generation
        self._include_usage = include_usage
        self._keep_alive = keep_alive
        self._gone = False
        self._last = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        last = b""
        watcher = asyncio.create_task(self._watch(receive, send))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
            try:
                await self._relay(send)
            except StreamgenError as error:
                last = error_event(error)
            except Exception:
                log.exception("stream_failed", request_id=of(scope).request_id)
                last = error_event(unforeseen())
        finally:
            watcher.cancel()
            await self._generation.close()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
        if not self._gone:
            await send({"type": "http.response.body", "body": last + DONE, "more_body": False})

    async def _relay(self, send: Send) -> None:
        get, time = self._generation.get, self._loop.time
        while frames := await get():
            if self._gone:
                return
            await send(
                {
                    "type": "http.response.body",
                    "body": frames[0] if len(frames) == 1 else b"".join(frames),
                    "more_body": True,
                }
            )
            self._last = time()
        if self._include_usage and not self._gone:
            usage = self._generation.renderer.usage(self._generation.usage)
            await send({"type": "http.response.body", "body": usage, "more_body": True})

    async def _watch(self, receive: Receive, send: Send) -> None:
        while True:
            try:
                async with asyncio.timeout_at(self._last + self._keep_alive):
                    message = await receive()
            except TimeoutError:
                if self._loop.time() - self._last >= self._keep_alive:
                    self._last = self._loop.time()
                    await send({"type": "http.response.body", "body": HEARTBEAT, "more_body": True})
                continue
            if message["type"] == "http.disconnect":
                self._gone = True
                self._generation.abort()
                return
