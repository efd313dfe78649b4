"""A panel of 8-bit weights times a few tokens' 8-bit activations: the inner loop of every product."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.types import intp, none

from streamgen_kernels.int8.native import FLOAT, FLOATS, INT, INTS, LANES, VECTOR_BYTES, Builder, native
from streamgen_kernels.int8.target import INTEGER_DOT

PANEL = 2 * LANES
"""Rows of a weight matrix that are multiplied at once: two vectors."""
_AHEAD = 2048
"""Bytes between what is multiplied and what is asked for. With 8 tokens a step is a quarter shorter for it."""
GROUP = 4
"""Columns whose bytes one instruction multiplies and adds up."""


def product_tile(tokens: int, *, adds: bool) -> Any:
    """A function for one panel and this many tokens; addresses, strides in bytes, and the number of column groups.

    out[m, n] = (Σ_k (x[m, k] - 128) · w[n, k]) · x_scale[m] · w_scale[n] + bias[n], added to what is there if it
    `adds`.
    """

    @native(none, intp, intp, intp, intp, intp, intp, intp, intp, intp, intp)
    def tile(
        b: Builder,
        x: Any,
        x_stride: Any,
        x_scale: Any,
        panel: Any,
        groups: Any,
        first_sum: Any,
        w_scale: Any,
        bias: Any,
        out: Any,
        out_stride: Any,
    ) -> None:
        def halves(kind: Any, address: Any) -> list[Any]:
            return [b.load(kind, b.at(address, half, VECTOR_BYTES)) for half in range(2)]

        sums = b.variables(*halves(INTS, first_sum) * tokens)
        with b.loop(groups) as group:
            place = b.at(panel, group, GROUP * PANEL)
            weights = halves(INTS, place)
            for half in range(2):
                b.prefetch(b.at(b.at(place, 1, _AHEAD), half, VECTOR_BYTES))
            for token in range(tokens):
                activations = b.spread(b.load(INT, b.at(b.at(x, token, x_stride), group, GROUP)))
                for half in range(2):
                    index = 2 * token + half
                    sums[index] = _dot(b, sums[index], activations, weights[half])
        scales, biases = halves(FLOATS, w_scale), halves(FLOATS, bias)
        for token in range(tokens):
            scale = b.spread(b.load(FLOAT, b.at(x_scale, token, 4)))
            for half in range(2):
                value = b.ir.fmul(b.ir.sitofp(sums[2 * token + half], FLOATS), scale)
                value = b.fma(value, scales[half], biases[half])
                place = b.at(b.at(out, token, out_stride), half, VECTOR_BYTES)
                b.store(b.ir.fadd(value, b.load(FLOATS, place)) if adds else value, place)

    return tile


def _dot(b: Builder, sums: Any, activations: Any, weights: Any) -> Any:
    """Each lane of sums plus the product of its four bytes: unsigned activations, signed weights. Exact."""
    match INTEGER_DOT:
        case "avx512vnni":
            return _vpdpbusd(b, sums, activations, weights)
        case "avxvnni":
            return _by_halves(b, _vpdpbusd, sums, activations, weights)
        case "avx2":
            return _by_halves(b, _vpmaddwd, sums, activations, weights)
        case "plain":
            return _plain_dot(b, sums, activations, weights)


def _by_halves(b: Builder, dot: Any, *operands: Any) -> Any:
    half = ir.VectorType(INT, LANES // 2)
    parts = (half(list(range(LANES // 2))), half(list(range(LANES // 2, LANES))))
    low, high = (
        dot(b, *(b.ir.shuffle_vector(operand, INTS(ir.Undefined), part) for operand in operands)) for part in parts
    )
    return b.ir.shuffle_vector(low, high, INTS(list(range(LANES))))


def _vpdpbusd(b: Builder, sums: Any, activations: Any, weights: Any) -> Any:
    return b.call(f"llvm.x86.avx512.vpdpbusd.{32 * sums.type.count}", sums.type, sums, activations, weights)


def _vpmaddwd(b: Builder, sums: Any, activations: Any, weights: Any) -> Any:
    """Even and odd bytes apart, each widened to 16 bits, so that no sum of two products overflows."""
    shorts = ir.VectorType(ir.IntType(16), 2 * sums.type.count)
    eight, byte = (shorts([value] * shorts.count) for value in (8, 255))
    x, w = b.ir.bitcast(activations, shorts), b.ir.bitcast(weights, shorts)
    even = b.ir.and_(x, byte), b.ir.ashr(b.ir.shl(w, eight), eight)
    odd = b.ir.lshr(x, eight), b.ir.ashr(w, eight)
    for pair in (even, odd):
        sums = b.ir.add(sums, b.call("llvm.x86.avx2.pmadd.wd", sums.type, *pair))
    return sums


def _plain_dot(b: Builder, sums: Any, activations: Any, weights: Any) -> Any:
    for byte in range(GROUP):
        left, right = (INTS([shift] * LANES) for shift in (24 - 8 * byte, 8 * byte))
        x = b.ir.and_(b.ir.lshr(activations, right), INTS([255] * LANES))
        w = b.ir.ashr(b.ir.shl(weights, left), INTS([24] * LANES))
        sums = b.ir.add(sums, b.ir.mul(x, w))
    return sums
