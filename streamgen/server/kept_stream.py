"""A stream with event ids, which a client that lost its connection can go on reading.

It is read from the engine by a task of its own, numbered into a replay buffer, and written from there to whichever
connection reads it at the moment: at most one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from streamgen.errors import StreamgenError
from streamgen.server.error_responses import unforeseen
from streamgen.server.generation import Generation
from streamgen.server.sse_frames import DONE, error_event
from streamgen.server.ws_replay import ReplayBuffer

log = structlog.get_logger(__name__)


class Reader:
    """One connection's place in a KeptStream."""

    __slots__ = ("gone", "news", "position", "replaced")

    def __init__(self, position: int) -> None:
        self.position = position
        """Number of the last event that was sent."""
        self.news = asyncio.Event()
        self.gone = False
        self.replaced = False


class KeptStream:
    """Owned by the event loop. `max_bytes` bounds what is kept; a reader that lags behind it ends the request."""

    def __init__(
        self,
        generation: Generation,
        *,
        tenant: str,
        include_usage: bool,
        max_bytes: int,
    ) -> None:
        self.generation = generation
        self.tenant = tenant
        self.replay = ReplayBuffer(max_bytes)
        self.reader: Reader | None = None
        self.ended = False
        self.on_growth: Callable[[int], None] | None = None
        """Told of the bytes by which `replay` has grown, while the stream is kept for whoever comes back."""
        self._forgotten = False
        self._include_usage = include_usage
        self._position = 0
        self._task = asyncio.create_task(self._pump())

    def attach(self, after: int) -> Reader:
        """A reader that has the events up to `after`, which the caller has checked. It replaces another one."""
        if self.reader is not None:
            self.reader.replaced = True
            self.reader.news.set()
        self.reader = Reader(after)
        self._position = after
        return self.reader

    def sent(self, reader: Reader, number: int) -> None:
        """`reader` has got the next `number` events."""
        reader.position += number
        if reader is self.reader:
            self._position = reader.position
        if self._forgotten:
            self.replay.drop_through(reader.position)

    def detach(self, reader: Reader) -> bool:
        """The connection is over. False if another one has taken its place before."""
        if reader is not self.reader:
            return False
        self.reader = None
        return True

    def forget(self) -> None:
        """It can be resumed no more: a reader gets the rest, of which nothing is kept once it is sent."""
        self._forgotten = True
        self.on_growth = None
        if self.reader is None:
            self.abandon()
        self.replay.drop_through(self.replay.last if self.reader is None else self._position)

    def abandon(self) -> None:
        """Nobody will read this: stop the engine's work."""
        self.generation.abort()

    async def close(self) -> None:
        self.abandon()
        await self._task

    async def _pump(self) -> None:
        try:
            try:
                while events := await self.generation.get():
                    for event in events:
                        self._append(event)
                if self._include_usage:
                    self._append(self.generation.renderer.usage(self.generation.usage))
            except StreamgenError as error:
                self._append(error_event(error))
            except Exception:
                log.exception("kept_stream_failed")
                self._append(error_event(unforeseen()))
            self._append(DONE)
        finally:
            self.ended = True
            await self.generation.close()
            if self.reader is not None:
                self.reader.news.set()

    def _append(self, event: bytes) -> None:
        before = self.replay.num_bytes
        self.replay.append(f"id: {self.replay.last + 1}\n{event.decode()}")
        if self.replay.first > self._position + 1:
            # What nobody has read yet was dropped, so that nobody can go on with it.
            self.generation.abort()
        if self.on_growth is not None:
            self.on_growth(self.replay.num_bytes - before)
        if self.reader is not None:
            self.reader.news.set()
