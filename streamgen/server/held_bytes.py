"""The bytes of requests that are not understood yet, counted over all connections. Pure."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from streamgen.errors import QueueFullError

MAX_HELD_BYTES = 64 * 2**20
FREE_BYTES = 64 * 1024
"""Of each request, which are not counted: ordinary requests are served however many large ones are under way, and a
connection's own buffers take as much."""


class HeldBytes:
    """Bounds the sum of what its Holds say that they hold. Owned by the event loop; one for each app."""

    def __init__(self, limit: int = MAX_HELD_BYTES) -> None:
        self.limit = limit
        self.total = 0

    def open(self) -> Hold:
        return Hold(self)


class Hold:
    """One request's part. It ends with `release`, or where a `with` does."""

    __slots__ = ("_all", "_counted")

    def __init__(self, held: HeldBytes) -> None:
        self._all = held
        self._counted = 0

    def resize(self, size: int) -> None:
        """`size` bytes are held now. Raises QueueFullError if that is too much for all together.

        One request alone is never too much: its size has its own limit.
        """
        counted = max(0, size - FREE_BYTES)
        others = self._all.total - self._counted
        if counted > self._counted and others and others + counted > self._all.limit:
            raise QueueFullError("Too many bytes of requests are being received already.")
        self._all.total = others + counted
        self._counted = counted

    def release(self) -> None:
        self.resize(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
