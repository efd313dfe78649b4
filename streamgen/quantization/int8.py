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

from streamgen.quantization.integer_product import (
    LIMIT,
    Product,
    fused_is_exact,
    integer_product,
    plain_is_exact,
    round_,
)

_LEAST_SCALE = 1e-30
"""Keeps a row of zeros from being divided by zero."""


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """From x [T, K] float32: (int8 [T, K], scales [T, 1]) with x ≈ values · scale. A row with NaN gets scale NaN."""
    scale = _row_scales(x)
    return round_(x / scale).to(torch.int8), scale


def _row_scales(x: Tensor) -> Tensor:
    return torch.add(_constant(_LEAST_SCALE), x.abs().amax(-1, keepdim=True), alpha=1 / LIMIT)


@cache
def _constant(value: float) -> Tensor:
    # A Python number would be made a tensor, and be converted, at every call.
    return torch.tensor(value)


class Int8Method:
    """See the module. With `heavy_tailed` inputs, activations take two bytes each, in two rows of the same product.

    The second byte holds what rounding to the first left over. A decode step waits for the weights to come from
    memory, so the second row costs much less than the first.
    """

    def __init__(
        self, out_features: int, in_features: int, *, bias: bool, heavy_tailed: bool, has_lookup: bool = False
    ) -> None:
        """Args: `has_lookup` keeps the rows at hand for `lookup` when the product wants them in an order of its own."""
        self._shape = (out_features, in_features)
        self.weight: Tensor | None = torch.zeros(out_features, in_features, dtype=torch.int8)
        self.scale = torch.zeros(out_features, dtype=torch.float32)
        self.bias = torch.zeros(out_features, dtype=torch.float32) if bias else None
        self._has_lookup = has_lookup
        self._apply = self._two_bytes if heavy_tailed else self._one_byte
        self._prepared: Product | None = None

    def load(self, start: int, values: Tensor) -> None:
        assert self.weight is not None, "all shards are loaded before the first product"
        quantized, scale = quantize_rows(values.to(torch.float32))
        self.weight[start : start + len(values)].copy_(quantized)
        self.scale[start : start + len(values)].copy_(scale[:, 0])

    def load_bias(self, start: int, values: Tensor) -> None:
        assert self.bias is not None
        self.bias[start : start + len(values)].copy_(values)

    def apply(self, x: Tensor) -> Tensor:
        out = self._apply(x, self._prepared or self._prepare())
        return out if self.bias is None else out.add_(self.bias)

    def _prepare(self) -> Product:
        assert self.weight is not None
        self._prepared = integer_product(self.weight, self.scale)
        if fused_is_exact() and not self._has_lookup:
            self.weight = None  # the product has a copy in an order of its own
        return self._prepared

    @staticmethod
    def _one_byte(x: Tensor, product: Product) -> Tensor:
        scale = _row_scales(x)
        return product(x / scale).mul_(scale)

    @staticmethod
    def _two_bytes(x: Tensor, product: Product) -> Tensor:
        scale = _row_scales(x)
        low = x / scale
        high = round_(low.clone())
        # What is left is at most a half, so that it fills the second byte's range.
        low.sub_(high).mul_(_constant(2.0 * LIMIT))
        high_sum, low_sum = product(torch.cat((high, low))).chunk(2)
        return high_sum.add_(low_sum, alpha=1 / (2 * LIMIT)).mul_(scale)

    def lookup(self, ids: Tensor) -> Tensor:
        assert self.weight is not None
        assert self._has_lookup
        return self.weight.index_select(0, ids) * self.scale.index_select(0, ids)[:, None]

    @property
    def num_bytes(self) -> int:
        copies = 2 if self._has_lookup and self._prepared is not None and fused_is_exact() else 1
        return copies * self._shape[0] * self._shape[1] + self.scale.nbytes


def int8_is_fast() -> bool:
    """Whether this machine's integer product is exact, and beats the float one on a decode step's shape.

    Takes a few milliseconds; meant to be asked once, when the engine chooses its numeric mode.
    """
    if not (fused_is_exact() or plain_is_exact()):
        return False
    with torch.inference_mode():
        integer = integer_product(torch.ones(1024, 1024, dtype=torch.int8), torch.ones(1024))
        weight, row = torch.ones(1024, 1024), torch.ones(1, 1024)
        return _fastest(lambda: integer(row)) < _fastest(lambda: torch.nn.functional.linear(row, weight))


def _fastest(function: object, repeats: int = 7) -> float:
    assert callable(function)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)
