"""Rows of floats, as an address and a number of vectors. Sums are kept by lane and added up last, in one order."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.types import float32, intp, none, uint16

from streamgen_kernels.int8.native import (
    BYTES,
    FLOAT,
    FLOATS,
    INTS,
    LANES,
    VECTOR_BYTES,
    Builder,
    floats,
    ints,
    native,
)

# Above 2^23 float32 has no fractions, so that adding this number rounds to the nearest integer, ties to even, and
# leaves it in the low bits.
_ROUNDING = 1.5 * 2**23


@native(float32, intp, intp)
def sum_of_squares(b: Builder, row: Any, vectors: Any) -> Any:
    """Σ x²."""
    total = b.variables(floats(0.0))
    with b.loop(vectors) as index:
        x = b.load(FLOATS, b.at(row, index, VECTOR_BYTES))
        total[0] = b.fma(x, x, total[0])
    return b.across(total[0], b.ir.fadd)


@native(float32, intp, intp)
def largest_magnitude(b: Builder, row: Any, vectors: Any) -> Any:
    """The largest |x|. Compared as integers, whose order is the same but for NaN, which is above all: none is lost."""
    largest = b.variables(ints(0))
    with b.loop(vectors) as index:
        x = b.load(INTS, b.at(row, index, VECTOR_BYTES))
        largest[0] = b.larger(b.ir.and_(x, ints(0x7FFFFFFF)), largest[0])
    return b.ir.bitcast(b.across(largest[0], b.larger), FLOAT)


@native(float32, intp, intp)
def largest(b: Builder, row: Any, vectors: Any) -> Any:
    """The largest x; NaN is passed over."""
    maximum = b.variables(floats(float("-inf")))

    def larger(x: Any, y: Any) -> Any:
        return b.ir.select(b.ir.fcmp_ordered(">", x, y), x, y)

    with b.loop(vectors) as index:
        maximum[0] = larger(b.load(FLOATS, b.at(row, index, VECTOR_BYTES)), maximum[0])
    return b.across(maximum[0], larger)


@native(none, intp, intp, float32, intp)
def scaled(b: Builder, row: Any, vectors: Any, factor: Any, out: Any) -> None:
    """The products x · factor."""
    factors = b.spread(factor)
    with b.loop(vectors) as index:
        x = b.load(FLOATS, b.at(row, index, VECTOR_BYTES))
        b.store(b.ir.fmul(x, factors), b.at(out, index, VECTOR_BYTES))


@native(uint16, float32)
def half_bits(b: Builder, x: Any) -> Any:
    """The bits of x as float16; what is beyond its range becomes its largest number."""
    for limit, beyond in ((FLOAT(65504.0), ">"), (FLOAT(-65504.0), "<")):
        x = b.ir.select(b.ir.fcmp_ordered(beyond, x, limit), limit, x)
    return b.ir.bitcast(b.ir.fptrunc(x, ir.HalfType()), ir.IntType(16))


def _bytes_of(b: Builder, values: Any) -> Any:
    """The nearest integers plus 128, as bytes; |x| ≤ 127. What is not finite becomes any byte."""
    bits = b.ir.bitcast(b.ir.fadd(values, floats(_ROUNDING)), INTS)
    return b.ir.xor(b.ir.trunc(bits, BYTES), BYTES([128] * LANES))


@native(none, intp, intp, float32, intp)
def to_bytes(b: Builder, row: Any, vectors: Any, factor: Any, out: Any) -> None:
    """The nearest integers to x · factor, plus 128."""
    factors = b.spread(factor)
    with b.loop(vectors) as index:
        x = b.load(FLOATS, b.at(row, index, VECTOR_BYTES))
        b.store(_bytes_of(b, b.ir.fmul(x, factors)), b.at(out, index, LANES))


@native(none, intp, intp, float32, intp)
def from_bytes(b: Builder, row: Any, vectors: Any, factor: Any, out: Any) -> None:
    """The products of signed bytes and the factor."""
    factors = b.spread(factor)
    with b.loop(vectors) as index:
        x = b.ir.sext(b.load(BYTES, b.at(row, index, LANES)), INTS)
        b.store(b.ir.fmul(b.ir.sitofp(x, FLOATS), factors), b.at(out, index, VECTOR_BYTES))


def _exp(b: Builder, x: Any) -> Any:
    """To two units in the last place; beyond -64 and 88 it stays what it is there. NaN stays NaN.

    What is below e^-64 could not be told from it in any sum with a 1, but a softmax would divide it into the numbers
    below 2^-126, for which processors take a hundred cycles. The reduction and the polynomial are those of the Cephes
    library's expf.
    """
    for limit, beyond in ((88.0, ">"), (-64.0, "<")):
        x = b.ir.select(b.ir.fcmp_ordered(beyond, x, floats(limit)), floats(limit), x)
    shifted = b.fma(x, floats(1.44269504088896341), floats(_ROUNDING))
    n = b.ir.fsub(shifted, floats(_ROUNDING))
    r = b.fma(n, floats(2.12194440e-4), b.fma(n, floats(-0.693359375), x))
    value = floats(1.9875691500e-4)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        value = b.fma(value, r, floats(coefficient))
    value = b.ir.fadd(b.fma(value, b.ir.fmul(r, r), r), floats(1.0))
    power = b.ir.shl(b.ir.bitcast(shifted, INTS), ints(23))
    return b.ir.bitcast(b.ir.add(b.ir.bitcast(value, INTS), power), FLOATS)


@native(float32, intp, intp, float32, float32)
def exponentials(b: Builder, row: Any, vectors: Any, largest: Any, scale: Any) -> Any:
    """Replace each x by exp((x - largest) · scale); return their sum."""
    total = b.variables(floats(0.0))
    largest, scale = b.spread(largest), b.spread(scale)
    with b.loop(vectors) as index:
        place = b.at(row, index, VECTOR_BYTES)
        value = _exp(b, b.ir.fmul(b.ir.fsub(b.load(FLOATS, place), largest), scale))
        b.store(value, place)
        total[0] = b.ir.fadd(total[0], value)
    return b.across(total[0], b.ir.fadd)


@native(none, intp, intp, intp)
def gate(b: Builder, row: Any, up: Any, vectors: Any) -> None:
    """Replace each x by silu(x) · up."""
    with b.loop(vectors) as index:
        place = b.at(row, index, VECTOR_BYTES)
        x = b.load(FLOATS, place)
        silu = b.ir.fdiv(x, b.ir.fadd(floats(1.0), _exp(b, b.ir.fneg(x))))
        b.store(b.ir.fmul(silu, b.load(FLOATS, b.at(up, index, VECTOR_BYTES))), place)


@native(none, intp, intp)
def hadamard_within(b: Builder, row: Any, vectors: Any) -> None:
    """Multiply each vector by the Hadamard matrix of its 16 lanes."""
    with b.loop(vectors) as index:
        place = b.at(row, index, VECTOR_BYTES)
        x = b.load(FLOATS, place)
        for stride in (1, 2, 4, 8):
            partner = b.ir.shuffle_vector(x, FLOATS(ir.Undefined), INTS([lane ^ stride for lane in range(LANES)]))
            x = b.fma(x, FLOATS([-1.0 if lane & stride else 1.0 for lane in range(LANES)]), partner)
        b.store(x, place)


@native(none, intp, intp, intp)
def butterfly(b: Builder, first: Any, second: Any, vectors: Any) -> None:
    """Replace x and y by x + y and x - y."""
    with b.loop(vectors) as index:
        places = [b.at(row, index, VECTOR_BYTES) for row in (first, second)]
        x, y = (b.load(FLOATS, place) for place in places)
        b.store(b.ir.fadd(x, y), places[0])
        b.store(b.ir.fsub(x, y), places[1])
