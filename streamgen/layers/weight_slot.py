from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class WeightSlot(NamedTuple):
    """Where one tensor of a checkpoint goes: its whole shape, and what takes it (and picks this rank's part)."""

    shape: tuple[int, ...]
    load: Callable[[Tensor], None]
