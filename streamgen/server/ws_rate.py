"""How many frames a connection may send: a token bucket. Pure; the time is passed in.

Each frame costs the event loop the same few microseconds, however small it is.
"""

from __future__ import annotations

FRAMES_PER_SECOND = 1000.0
FRAMES_AT_ONCE = 2000


class FrameRate:
    """Owned by one connection. Times are in seconds, on a clock that never jumps."""

    __slots__ = ("_left", "_then")

    def __init__(self, now: float) -> None:
        self._then = now
        self._left = float(FRAMES_AT_ONCE)

    def allows(self, number: int, now: float) -> bool:
        """Whether so many more frames are within the rate."""
        self._left = min(FRAMES_AT_ONCE, self._left + (now - self._then) * FRAMES_PER_SECOND) - number
        self._then = now
        return self._left >= 0
