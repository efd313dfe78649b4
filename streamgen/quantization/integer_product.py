"""Products of small integers, exact, by whichever of torch's kernels is exact and fast on this processor."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor

LIMIT = 127
"""Largest magnitude on either side."""

Product: TypeAlias = Callable[[Tensor], Tensor]
"""From x [T, K] float32, |x| ≤ 127: round(x) @ weight.T · scale, [T, N] float32. Not finite x gives anything.

A row's result depends on that row alone, bit for bit: the sums are integers, in which no order of addition matters.
"""


def integer_product(weight: Tensor, scale: Tensor) -> Product:
    """For weight [N, K] int8, |w| ≤ 127, and scale [N] float32. The result may keep a reference to `weight`, or not."""
    return _fused(weight, scale) if fused_is_exact() else _plain(weight, scale)


@cache
def fused_is_exact() -> bool:
    """Whether this processor's fused kernel adds exactly; before VNNI, sums of two products may saturate at 16 bits."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    if not hasattr(torch, "_make_per_channel_quantized_tensor"):
        return False
    return _adds_exactly(_fused)


@cache
def plain_is_exact() -> bool:
    """The same question for `torch._int_mm`."""
    return _adds_exactly(_plain)


def _adds_exactly(make: Callable[[Tensor, Tensor], Product]) -> bool:
    weight = torch.full((16, 512), LIMIT, dtype=torch.int8)
    weight[1::2] *= -1
    x = torch.full((3, 512), float(LIMIT))
    x[1] *= -1
    exact = x.double() @ weight.double().t()
    return torch.equal(make(weight, torch.ones(16))(x).double(), exact)


def _plain(weight: Tensor, scale: Tensor) -> Product:
    transposed = weight.t()

    def product(x: Tensor) -> Tensor:
        return torch._int_mm(round_(x.clone()).to(torch.int8), transposed) * scale  # noqa: SLF001

    return product


def _fused(weight: Tensor, scale: Tensor) -> Product:
    """Fbgemm's dynamically quantized linear: rounding, product and scaling in one call.

    That kernel maps the range of its whole input to 0 … 255, so that a row's result would depend on its neighbours. Two
    more inputs, always -128 and 127 and with weights of zero, pin that range: the step is then exactly 1.
    """
    rows, columns = weight.shape
    padded = torch.zeros((rows, columns + 2), dtype=torch.int8)
    padded[:, :columns] = weight
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        with warnings.catch_warnings():
            # torch means to drop quantized tensors one day; then the other product is taken.
            warnings.simplefilter("ignore")
            quantized = torch._make_per_channel_quantized_tensor(  # noqa: SLF001
                padded, scale.double(), torch.zeros(rows, dtype=torch.int64), 0
            )
        packed = torch.ops.quantized.linear_prepack(quantized, None)
    finally:
        torch.backends.quantized.engine = engine
    ends = torch.tensor([[-128.0, 127.0]])
    linear = torch.ops.quantized.linear_dynamic.default

    def product(x: Tensor) -> Tensor:
        # What the kernel's search for the range makes of NaN differs between processors.
        pinned = torch.cat((x, ends.expand(len(x), 2)), 1).nan_to_num_(0.0, 0.0, 0.0)
        sums: Tensor = linear(pinned, packed, False)
        return sums

    return product


def round_(x: Tensor) -> Tensor:
    """To the nearest integer, ties to even, in place; |x| < 2^22.

    Above 2^23 float32 has no fractions, so that adding this number rounds. torch.round goes through MKL's vector
    library, whose threads cost a decode step more than the rounding.
    """
    return x.add_(_SHIFT).sub_(_SHIFT)


# As a tensor: a Python number would be made one, and be converted, at every call.
_SHIFT = torch.tensor(1.5 * 2**23)
