"""Weights and activations in 8 bits, for CPUs, with exact integer sums.

Both sides are symmetric: a weight row has one scale, and so has an activation row, which is chosen from that row
alone. Sums are 32-bit integers, in which no order of addition matters, so that a row's result is the same, bit for
bit, in a batch of any size.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

_LIMIT = 127
_LEAST_SCALE = 1e-30
"""Keeps a row of zeros from being divided by zero."""


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """From x [T, K] float32: (int8 [T, K], scales [T, 1]) with x ≈ values · scale. A row with NaN gets scale NaN."""
    scale = x.abs().amax(-1, keepdim=True).mul_(1 / _LIMIT).add_(_LEAST_SCALE)
    return (x / scale).round_().to(torch.int8), scale


class Int8Method:
    """See the module. Holds a byte and a half-percent of a float for each weight."""

    def __init__(self, out_features: int, in_features: int, *, bias: bool, device: torch.device) -> None:
        self.weight = torch.zeros(out_features, in_features, dtype=torch.int8, device=device)
        self.scale = torch.zeros(out_features, dtype=torch.float32, device=device)
        self.bias = torch.zeros(out_features, dtype=torch.float32, device=device) if bias else None
        self._transposed = self.weight.t()

    def load(self, start: int, values: Tensor) -> None:
        quantized, scale = quantize_rows(values.to(torch.float32))
        self.weight[start : start + len(values)].copy_(quantized)
        self.scale[start : start + len(values)].copy_(scale[:, 0])

    def load_bias(self, start: int, values: Tensor) -> None:
        assert self.bias is not None
        self.bias[start : start + len(values)].copy_(values)

    def apply(self, x: Tensor) -> Tensor:
        quantized, scale = quantize_rows(x)
        out = (torch._int_mm(quantized, self._transposed) * scale).mul_(self.scale)  # noqa: SLF001
        return out if self.bias is None else out.add_(self.bias)

    def lookup(self, ids: Tensor) -> Tensor:
        return self.weight.index_select(0, ids) * self.scale.index_select(0, ids)[:, None]

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes + self.scale.nbytes


def int8_is_fast() -> bool:
    """Whether this machine's integer product beats the float one on a decode step's shape; some have none worth using.

    Takes a few milliseconds; meant to be asked once, when the engine chooses its numeric mode.
    """
    with torch.inference_mode():
        weight = torch.ones(1024, 1024, dtype=torch.int8)
        row = torch.ones(1, 1024, dtype=torch.int8)
        wide_weight, wide_row = weight.float(), row.float()
        integer = _fastest(lambda: torch._int_mm(row, weight.t()))  # noqa: SLF001
        return integer < _fastest(lambda: torch.nn.functional.linear(wide_row, wide_weight))


def _fastest(function: object, repeats: int = 7) -> float:
    assert callable(function)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)
