from __future__ import annotations

import torch
from torch import Tensor


class DenseMethod:
    """The plain format: weights in the dtype of the activations."""

    def __init__(
        self, out_features: int, in_features: int, *, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.weight = torch.empty(out_features, in_features, dtype=dtype, device=device)
        self.bias = torch.zeros(out_features, dtype=dtype, device=device) if bias else None

    def load(self, start: int, values: Tensor) -> None:
        self.weight[start : start + len(values)].copy_(values)

    def load_bias(self, start: int, values: Tensor) -> None:
        assert self.bias is not None
        self.bias[start : start + len(values)].copy_(values)

    def apply(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)

    def lookup(self, ids: Tensor) -> Tensor:
        return self.weight.index_select(0, ids)

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes
