"""Scores of a tile of 16 keys, and the weighted sum of its values, for a few queries at once. Both are float16."""

from __future__ import annotations

from typing import Any

from numba.types import intp, none

from streamgen_kernels.int8.native import FLOAT, FLOATS, HALVES_BYTES, LONG, VECTOR_BYTES, Builder, floats, native

_FLOAT_BYTES = 4


def score_tile(queries: int) -> Any:
    """A function for this many queries: scores[q, 0 … 15] = Σ_d query[q, d] · keys[d, 0 … 15]."""

    @native(none, intp, intp, intp, intp, intp, intp, intp)
    def tile(
        b: Builder, query: Any, query_stride: Any, keys: Any, next_keys: Any, size: Any, scores: Any, scores_stride: Any
    ) -> None:
        # Two sums a query, over the two halves of a head, keep more multiplications on their way.
        sums = b.variables(*[floats(0.0)] * (2 * queries))
        half = b.ir.udiv(size, LONG(2))
        with b.loop(half) as index:
            b.prefetch(b.at(next_keys, index, 2 * HALVES_BYTES))
            for part, d in enumerate((index, b.ir.add(index, half))):
                key = b.load_halves(b.at(keys, d, HALVES_BYTES))
                for q in range(queries):
                    value = b.load(FLOAT, b.at(b.at(query, q, query_stride), d, _FLOAT_BYTES))
                    sums[2 * q + part] = b.fma(b.spread(value), key, sums[2 * q + part])
        for q in range(queries):
            b.store(b.ir.fadd(sums[2 * q], sums[2 * q + 1]), b.at(scores, q, scores_stride))

    return tile


def value_tile(queries: int, vectors: int) -> Any:
    """A function for this many queries and vectors of dimensions: out[q] += Σ_j weight[q, j] · values[j], j < count."""

    @native(none, intp, intp, intp, intp, intp, intp, intp, intp)
    def tile(
        b: Builder,
        weight: Any,
        weight_stride: Any,
        values: Any,
        next_values: Any,
        values_stride: Any,
        count: Any,
        out: Any,
        out_stride: Any,
    ) -> None:
        places = [
            [b.at(b.at(out, q, out_stride), vector, VECTOR_BYTES) for vector in range(vectors)] for q in range(queries)
        ]
        sums = b.variables(*(b.load(FLOATS, place) for row in places for place in row))
        with b.loop(count) as index:
            row = b.at(values, index, values_stride)
            ahead = b.at(next_values, index, values_stride)
            for vector in range(0, vectors, 2):
                b.prefetch(b.at(ahead, vector, HALVES_BYTES))
            parts = [b.load_halves(b.at(row, vector, HALVES_BYTES)) for vector in range(vectors)]
            for q in range(queries):
                share = b.spread(b.load(FLOAT, b.at(b.at(weight, q, weight_stride), index, _FLOAT_BYTES)))
                for vector, part in enumerate(parts):
                    sums[q * vectors + vector] = b.fma(share, part, sums[q * vectors + vector])
        for q, row in enumerate(places):
            for vector, place in enumerate(row):
                b.store(sums[q * vectors + vector], place)

    return tile
