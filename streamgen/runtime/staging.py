from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray


class Staging:
    """Carries a step's host numbers to the device in one copy.

    On a GPU the copy is from pinned memory and is not waited for, so there is a ring of buffers, and one is written
    again only after its copy. On a CPU the arrays are taken as they are.
    """

    def __init__(self, device: torch.device, depth: int) -> None:
        self._device = device
        self._ring: list[torch.Tensor | None] = [None] * depth
        self._copied: list[torch.cuda.Event | None] = [None] * depth
        self._next = 0

    def upload(self, arrays: Sequence[NDArray[np.int64]]) -> list[torch.Tensor]:
        """The arrays, int64, as tensors on the device; views of one allocation there."""
        if self._device.type == "cpu":
            return [torch.from_numpy(array) for array in arrays]
        sizes = [array.size for array in arrays]
        total = sum(sizes)
        slot, self._next = self._next, (self._next + 1) % len(self._ring)
        copied = self._copied[slot]
        if copied is not None:
            copied.synchronize()
        buffer = self._ring[slot]
        if buffer is None or buffer.numel() < total:
            buffer = torch.empty(max(total, 4096), dtype=torch.int64, pin_memory=True)
            self._ring[slot] = buffer
        if total:
            buffer[:total].numpy()[:] = np.concatenate([array.reshape(-1) for array in arrays])
        on_device = buffer[:total].to(self._device, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._copied[slot] = event
        parts = on_device.split(sizes)
        return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
