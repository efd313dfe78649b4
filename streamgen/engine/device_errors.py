"""Which exceptions mean that the device is lost.

They are told by their names and messages: nothing here needs torch, and Triton, cuBLAS and cuDNN raise plain
RuntimeErrors for what torch has a type for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_LOST_TYPES = frozenset({"AcceleratorError"})
_SURVIVED_TYPES = frozenset({"OutOfMemoryError"})
_FROM_THE_DEVICE = re.compile(
    r"\b(CUDA|HIP|NCCL|cuDNN) (driver )?error\b|Triton Error \[|device-side assert|\bCU(BLAS|DNN)_STATUS_",
    re.IGNORECASE,
)
_SURVIVED = re.compile(
    r"""(?ix)
    out\ of\ memory | alloc_failed | not_initialized   # memory: cuBLAS says "not initialized" when its own runs short
    | invalid\ (argument|value|configuration) | out\ of\ resources | too\ many\ resources   # a launch was refused
    | invalid\ device\ function | no\ kernel\ image | not_supported | invalid_value
    | during\ capture | is\ capturing   # of a graph, which is thrown away
    """
)
_OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory", re.IGNORECASE)
_MOST_CAUSES = 8


def device_is_lost(error: BaseException) -> bool:
    """Whether an exception, or one behind it, says that the device's context cannot be used in this process again.

    After an illegal access or a failed assertion every later call fails too. A launch that was refused, or memory that
    ran out, fails one step and nothing else.
    """
    return any(map(_says_lost, _chain(error)))


def memory_ran_out(error: BaseException) -> bool:
    """Whether an exception, or one behind it, says that the device or the host has not enough memory."""
    return any(
        isinstance(cause, MemoryError)
        or type(cause).__name__ in _SURVIVED_TYPES
        or (isinstance(cause, RuntimeError) and bool(_OUT_OF_MEMORY.search(str(cause))))
        for cause in _chain(error)
    )


def described(error: BaseException) -> str:
    """An exception in one line: CUDA's messages go on with advice on debugging."""
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def _says_lost(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    text = str(error)
    if names & _SURVIVED_TYPES or _SURVIVED.search(text):
        return False
    return bool(names & _LOST_TYPES) or (isinstance(error, RuntimeError) and bool(_FROM_THE_DEVICE.search(text)))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and those that led to it; a chain may be a ring."""
    current: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if current is None:
            return
        yield current
        current = current.__cause__ or current.__context__
