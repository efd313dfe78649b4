"""Weights and activations in 8 bits, for CPUs, with exact integer sums.

Both sides are symmetric: a weight row has one scale, and so has an activation row, which is chosen from that row
alone. Sums are 32-bit integers, in which no order of addition matters, so that a row's result is the same, bit for
bit, in a batch of any size.
"""

from __future__ import annotations

import time
from functools import cache

import torch
from torch import Tensor

_LIMIT = 127
_LEAST_SCALE = 1e-30
"""Keeps a row of zeros from being divided by zero."""


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """From x [T, K] float32: (int8 [T, K], scales [T, 1]) with x ≈ values · scale. A row with NaN gets scale NaN."""
    scale = _row_scales(x)
    return _round_(x / scale).to(torch.int8), scale


def _round_(x: Tensor) -> Tensor:
    """To the nearest integer, ties to even, in place; |x| < 2^22.

    Above 2^23 float32 has no fractions, so that adding this number rounds. torch.round goes through MKL's vector library,
    whose threads cost a decode step more than the rounding.
    """
    shift = _constant(1.5 * 2**23, x.device)
    return x.add_(shift).sub_(shift)


def _row_scales(x: Tensor) -> Tensor:
    return torch.add(_constant(_LEAST_SCALE, x.device), x.abs().amax(-1, keepdim=True), alpha=1 / _LIMIT)


@cache
def _constant(value: float, device: torch.device) -> Tensor:
    # A Python number would be made a tensor, and be converted, at every call.
    return torch.tensor(value, device=device)


class Int8Method:
    """See the module. With `heavy_tailed` inputs, activations take two bytes each, in two rows of the same product.

    The second byte holds what rounding to the first left over. A decode step waits for the weights to come from
    memory, so the second row costs much less than the first.
    """

    def __init__(
        self, out_features: int, in_features: int, *, bias: bool, heavy_tailed: bool, device: torch.device
    ) -> None:
        self.weight = torch.zeros(out_features, in_features, dtype=torch.int8, device=device)
        self.scale = torch.zeros(out_features, dtype=torch.float32, device=device)
        self.bias = torch.zeros(out_features, dtype=torch.float32, device=device) if bias else None
        self._transposed = self.weight.t()
        self._product = self._two_bytes if heavy_tailed else self._one_byte

    def load(self, start: int, values: Tensor) -> None:
        quantized, scale = quantize_rows(values.to(torch.float32))
        self.weight[start : start + len(values)].copy_(quantized)
        self.scale[start : start + len(values)].copy_(scale[:, 0])

    def load_bias(self, start: int, values: Tensor) -> None:
        assert self.bias is not None
        self.bias[start : start + len(values)].copy_(values)

    def apply(self, x: Tensor) -> Tensor:
        out = self._product(x).mul_(self.scale)
        return out if self.bias is None else out.add_(self.bias)

    def _one_byte(self, x: Tensor) -> Tensor:
        quantized, scale = quantize_rows(x)
        return torch._int_mm(quantized, self._transposed) * scale  # noqa: SLF001

    def _two_bytes(self, x: Tensor) -> Tensor:
        scale = _row_scales(x)
        both = torch.empty((2, *x.shape), dtype=torch.float32, device=x.device)
        high, low = both[0], both[1]
        torch.div(x, scale, out=low)
        _round_(high.copy_(low))
        # What is left is at most a half, so that it fills the second byte's range.
        _round_(low.sub_(high).mul_(_constant(2.0 * _LIMIT, x.device)))
        sums = torch._int_mm(both.to(torch.int8).flatten(0, 1), self._transposed)  # noqa: SLF001
        high_sum, low_sum = sums.to(torch.float32).chunk(2)
        return high_sum.add_(low_sum, alpha=1 / (2 * _LIMIT)).mul_(scale)

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
