"""The last frames of a resumable request, kept for a reader that lost its socket. Pure.

The buffer is bounded in bytes and drops its oldest frames first: a reader that comes back within the bound misses
nothing, one that comes back later is told that it cannot go on.
"""

from __future__ import annotations

from collections import deque
from itertools import islice


class ReplayBuffer:
    """Frames with their sequence numbers, 1, 2, 3, … without gaps. Owned by the relay of one request."""

    __slots__ = ("_frames", "_max_bytes", "last", "num_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._frames: deque[tuple[str, int]] = deque()
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self.last = 0
        """Sequence number of the newest frame; 0 before the first."""

    @property
    def first(self) -> int:
        """Sequence number of the oldest frame that is still here; `last + 1` if there is none."""
        return self.last + 1 - len(self._frames)

    def append(self, frame: str) -> None:
        """Add the frame `last + 1`. It stays, even if it is longer than the bound, until the next one comes."""
        # ASCII and Latin-1 text takes a byte a character in memory, wider text up to four; what is counted here is
        # what goes over the wire, within a factor of two of either.
        size = len(frame) if frame.isascii() else len(frame.encode())
        self._frames.append((frame, size))
        self.num_bytes += size
        self.last += 1
        while self.num_bytes > self._max_bytes and len(self._frames) > 1:
            self._drop_oldest()

    def after(self, seq: int) -> list[str] | None:
        """Frames behind `seq`; None if some of them are gone, or if `seq` is yet to come."""
        if not self.first <= seq + 1 <= self.last + 1:
            return None
        # From the right: a reader that keeps up asks for the newest frame of thousands.
        newest = [frame for frame, _ in islice(reversed(self._frames), self.last - seq)]
        newest.reverse()
        return newest

    def drop_through(self, seq: int) -> None:
        """Drop the frames up to `seq`, which nobody will ask for again."""
        while self._frames and self.first <= seq:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, size = self._frames.popleft()
        self.num_bytes -= size

    def check(self) -> None:
        """The invariants: sizes add up, and the newest frame is there unless all were cleared."""
        assert self.num_bytes == sum(size for _, size in self._frames)
        assert 1 <= self.first <= self.last + 1
        assert self.num_bytes <= self._max_bytes or len(self._frames) == 1
        assert self.num_bytes >= 0
