from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from streamgen.layers.weight_slot import WeightSlot
from streamgen_kernels.operators import Operators


class RMSNorm:
    """`norm(x)`, or `add_norm(x, residual)` → (norm of the sum, the sum)."""

    def __init__(
        self, size: int, eps: float, *, operators: Operators, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.weight = torch.ones(size, dtype=dtype, device=device)
        self._norm = partial(operators.rms_norm, weight=self.weight, eps=eps)
        self._add_norm = partial(operators.add_rms_norm, weight=self.weight, eps=eps)

    def norm(self, x: Tensor) -> Tensor:
        return self._norm(x)

    def add_norm(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return self._add_norm(x, residual)

    def weight_slot(self) -> WeightSlot:
        return WeightSlot(tuple(self.weight.shape), self._load)

    def _load(self, values: Tensor) -> None:
        self.weight.copy_(values)
