"""Runs what would keep the event loop from its streams, such as tokenizing a long prompt, in a few threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from streamgen.errors import QueueFullError

P = ParamSpec("P")
T = TypeVar("T")

INLINE_BYTES = 2048
"""Smaller bodies are prepared on the loop: they take well under a millisecond, a thread's wake-up costs as much."""
MAX_WAITING = 128
MAX_WAITING_BYTES = 256 * 2**20


class Workers:
    """Owned by the event loop. Bounded in threads, and in the number and bytes of the bodies that wait for one."""

    def __init__(self, threads: int = 2) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prepare")
        self._waiting = 0
        self._waiting_bytes = 0

    async def run(self, size: int, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """`function(...)`, inline if its input of `size` bytes is small. Raises QueueFullError past the bounds."""
        if size <= INLINE_BYTES:
            return function(*args, **kwargs)
        # One body alone is never too much: its size has its own limit.
        if self._waiting and (self._waiting >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES):
            raise QueueFullError("Too many long requests are being prepared already.")
        self._waiting += 1
        self._waiting_bytes += size
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))
        finally:
            self._waiting -= 1
            self._waiting_bytes -= size

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
