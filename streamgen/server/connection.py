"""One connection that is being sent events: writes, heartbeats in silence, and the moment the client leaves.

A departure is learned from `receive()` alone: `send()` does not tell.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.types import Receive, Send

from streamgen.server.sse_frames import HEADERS, HEARTBEAT


class EventConnection:
    """Owned by the task that writes. A second task waits for the client to leave, or for `keep_alive` seconds of
    silence.
    """

    def __init__(self, receive: Receive, send: Send, *, keep_alive: float, on_gone: Callable[[], None]) -> None:
        self.gone = False
        self._receive = receive
        self._send = send
        self._keep_alive = keep_alive
        self._on_gone = on_gone
        self._time = asyncio.get_running_loop().time
        self._last = self._time()

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Sends the headers, and watches as long as it is entered."""
        watcher = asyncio.create_task(self._watch())
        try:
            await self._send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
            yield
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher

    def write(self, body: bytes) -> Awaitable[None]:
        self._last = self._time()
        return self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, body: bytes) -> None:
        """The last bytes; nothing if there is nobody to read them. Not while watched: a heartbeat may be under way."""
        if not self.gone:
            await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _watch(self) -> None:
        while True:
            try:
                async with asyncio.timeout_at(self._last + self._keep_alive):
                    message = await self._receive()
            except TimeoutError:
                if self._time() - self._last >= self._keep_alive:
                    await self.write(HEARTBEAT)
                continue
            if message["type"] == "http.disconnect":
                self.gone = True
                self._on_gone()
                return
