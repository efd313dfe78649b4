"""The streams that can be resumed, by the id in their chunks; bounded in time, number and bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from streamgen.errors import InvalidRequestError, NotFoundError, ReplayGoneError
from streamgen.server.kept_shares import Shares
from streamgen.server.kept_stream import KeptStream, Reader

GRACE = 60.0
"""Seconds for which a stream is kept without a reader, or after its end."""
MAX_STREAMS = 1024
MAX_BYTES = 64 * 2**20


class Timer(Protocol):
    def cancel(self) -> None: ...


class KeptStreams:
    """Owned by the event loop."""

    def __init__(
        self,
        *,
        grace: float = GRACE,
        max_streams: int = MAX_STREAMS,
        max_bytes: int = MAX_BYTES,
        call_later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        self._grace = grace
        self.shares: Shares[str] = Shares(max_items=max_streams, max_bytes=max_bytes)
        self._call_later = call_later or (lambda delay, run: asyncio.get_running_loop().call_later(delay, run))
        self._streams: dict[str, KeptStream] = {}
        self._timers: dict[str, Timer] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream_id: str, stream: KeptStream) -> None:
        """Keep a stream, which is being read already."""
        self._streams[stream_id] = stream
        self.shares.add(stream_id, stream.tenant, stream.replay.num_bytes)
        stream.on_growth = partial(self._grown, stream_id)
        self._make_room(stream_id)

    def resume(self, stream_id: str, tenant: str, after: int) -> KeptStream:
        """The stream, for a reader that has its events up to `after`.

        Raises NotFoundError, also for another tenant's; InvalidRequestError for an event that has not come yet;
        ReplayGoneError if events behind `after` are no longer kept.
        """
        stream = self._streams.get(stream_id)
        if stream is None or stream.tenant != tenant:
            raise NotFoundError("There is no such stream to resume, or it is kept no longer.", "id")
        if after > stream.replay.last:
            raise InvalidRequestError(
                f"Last-Event-ID is {after}, but the last event so far is {stream.replay.last}.", "Last-Event-ID"
            )
        if after + 1 < stream.replay.first:
            raise ReplayGoneError(
                f"Events {after + 1} to {stream.replay.first - 1} are no longer kept.", "Last-Event-ID"
            )
        self._cancel_timer(stream_id)
        return stream

    def leave(self, stream_id: str, stream: KeptStream, reader: Reader) -> None:
        """A connection is over. From now on its stream's time runs; one that is not kept is aborted at once."""
        if not stream.detach(reader):
            return
        if stream_id not in self._streams:
            stream.abandon()
            return
        self._cancel_timer(stream_id)
        self._timers[stream_id] = self._call_later(self._grace, lambda: self._discard(stream_id))

    def clear(self) -> None:
        """Keep nothing any more. Streams that are being read go on."""
        for stream_id in list(self._streams):
            self._discard(stream_id)

    async def close(self) -> None:
        """End all of them."""
        streams = list(self._streams.values())
        self.clear()
        for stream in streams:
            await stream.close()

    def _discard(self, stream_id: str) -> None:
        self._cancel_timer(stream_id)
        self.shares.remove(stream_id)
        self._streams.pop(stream_id).forget()

    def _cancel_timer(self, stream_id: str) -> None:
        timer = self._timers.pop(stream_id, None)
        if timer is not None:
            timer.cancel()

    def _grown(self, stream_id: str, by: int) -> None:
        self.shares.grow(stream_id, by)
        self._make_room(stream_id)

    def _make_room(self, cause: str) -> None:
        """Forget, of whose turn it is, the oldest of those that have ended, then of those without a reader, then of
        the others, which go on but can be resumed no more.
        """
        while candidates := self.shares.to_make_room(cause):
            self._discard(min(candidates, key=self._worth))

    def _worth(self, stream_id: str) -> tuple[bool, bool]:
        stream = self._streams[stream_id]
        return (not stream.ended, stream.reader is not None)
