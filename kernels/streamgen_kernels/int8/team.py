"""Threads that go through one step together, phase by phase.

A phase is cut into chunks, and whoever is free takes the next one, so that a thread which the system has put aside
delays nobody unless it holds a chunk. At the end of a phase everyone waits until all its chunks are done, spinning: a
phase is a few microseconds long. Between steps the helpers sleep.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
from llvmlite import ir
from numba.types import boolean, int64, intp, none

from streamgen_kernels.int8.native import INT, LONG, Builder, compiled, native
from streamgen_kernels.int8.target import IS_X86

_LINE_BYTES = 64
"""Each counter has a cache line of its own, so that threads do not disturb each other's."""
_PHASE_BYTES = 2 * _LINE_BYTES
_SPINS = 4000
"""Looks at a counter before the core is offered to another thread: some tens of microseconds."""
_COUNT = 0xFFFFFFFF
_RUNS = 0x3FFFFFFF


class Team:
    """The calling thread and `threads` - 1 helpers. Not for several callers at once."""

    def __init__(self, threads: int, phases: int) -> None:
        """Args: `phases` bounds how many phases a function may have."""
        # Two counters a phase, chunks taken and chunks done: the number in the low half, the run in the high half.
        self._counters = np.zeros((phases, 2, _LINE_BYTES // 8), np.int64)
        self._run = 0
        self._helpers = [_Helper(index) for index in range(1, threads)]

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call the compiled function(team, *arguments) on all threads; return when all its phases are done.

        A helper may arrive late, even after the end: it finds all chunks taken, or another run's counters, and does
        nothing. What a helper raised is raised here, in this run or the next.
        """
        self._run = (self._run + 1) & _RUNS
        self._counters[:, :, 0] = self._run << 32
        place = (self._counters.ctypes.data, self._run)
        for helper in self._helpers:
            # The counters go along, so that they outlive a team that is dropped while a helper is on its way.
            helper.jobs.put((self._counters, function, (*place, helper.index), arguments))
        function((*place, 0), *arguments)
        for helper in self._helpers:
            if helper.error is not None:
                raise helper.error

    def close(self) -> None:
        for helper in self._helpers:
            helper.jobs.put(None)


class _Helper:
    def __init__(self, index: int) -> None:
        self.index = index
        self.jobs: SimpleQueue[tuple[Any, Callable[..., None], tuple[int, int, int], tuple[Any, ...]] | None]
        self.jobs = SimpleQueue()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, name=f"streamgen-cpu-{index}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        jobs = self.jobs
        while (job := jobs.get()) is not None:
            _counters, function, team, arguments = job
            try:
                function(team, *arguments)
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                self.error = error
            # Between runs nothing of a model is held.
            del job, _counters, function, arguments


@compiled
def take(team, phase, chunks):
    """The next chunk of a phase for this thread to do, or -1."""
    counters, run, _ = team
    taken = counters + phase * _PHASE_BYTES
    while True:
        seen = _load(taken)
        if seen >> 32 != run or seen & _COUNT >= chunks:
            return -1
        if _replace(taken, seen, seen + 1):
            return seen & _COUNT


@compiled
def finish(team, phase, chunks):
    """Say that the chunk that this thread took is done, and take the next one."""
    _add(team[0] + phase * _PHASE_BYTES + _LINE_BYTES, 1)
    return take(team, phase, chunks)


@compiled
def wait(team, phase, chunks):
    """Wait until all chunks of a phase are done."""
    counters, run, _ = team
    done = counters + phase * _PHASE_BYTES + _LINE_BYTES
    spins = 0
    while True:
        seen = _load(done)
        if seen >> 32 != run or seen & _COUNT >= chunks:
            return
        spins += 1
        if spins < _SPINS:
            _pause()
        else:
            _give_way()


def _long_at(b: Builder, address: Any) -> Any:
    return b.ir.inttoptr(address, LONG.as_pointer())


@native(int64, intp)
def _load(b: Builder, address: Any) -> Any:
    """What was written before the number was stored is seen after."""
    return b.ir.load_atomic(_long_at(b, address), "acquire", 8)


@native(int64, intp, int64)
def _add(b: Builder, address: Any, amount: Any) -> Any:
    """What was written before is seen by whoever reads the sum."""
    return b.ir.atomic_rmw("add", _long_at(b, address), amount, "acq_rel")


@native(boolean, intp, int64, int64)
def _replace(b: Builder, address: Any, expected: Any, wanted: Any) -> Any:
    """Put `wanted` where `expected` stands, in one go; whether it stood there."""
    return b.ir.extract_value(b.ir.cmpxchg(_long_at(b, address), expected, wanted, "acq_rel", "acquire"), 1)


@native(none)
def _pause(b: Builder) -> None:
    """Tell the processor that this thread only waits."""
    if IS_X86:
        b.call("llvm.x86.sse2.pause", ir.VoidType())


@native(none)
def _give_way(b: Builder) -> None:
    """Let another thread have the core."""
    if sys.platform != "win32":
        b.call("sched_yield", INT)
