"""Products of 8-bit activations and weights, and the order in which they want the weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamgen_kernels.int8.arrays import aligned
from streamgen_kernels.int8.native import compiled
from streamgen_kernels.int8.product_tile import GROUP, PANEL, product_tile
from streamgen_kernels.int8.rows import round_row
from streamgen_kernels.int8.team import finish, take, wait

_write_1, _write_2, _write_4, _write_8 = (product_tile(tokens, adds=False) for tokens in (1, 2, 4, 8))
_add_1, _add_2, _add_4, _add_8 = (product_tile(tokens, adds=True) for tokens in (1, 2, 4, 8))


class Matrix(NamedTuple):
    """A weight [N, K] for each of L layers, each row of bytes with one scale, in panels of 32 rows.

    A panel holds four columns of each of its rows, then the next four: what one instruction multiplies is 16 rows'
    groups of four bytes.
    """

    panels: NDArray[np.int8]
    """[L, ceil(N / 32), K / 4, 32, 4]."""
    first_sum: NDArray[np.int32]
    """[L, N padded]: -128 · the sum of a row's weights, which undoes that activations are stored with 128 added."""
    scale: NDArray[np.float32]
    """[L, N padded]."""
    bias: NDArray[np.float32]
    """[L, N padded]; zeros where there is none."""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self)


def padded(rows: int) -> int:
    """Columns that a product with a weight of so many rows writes: whole panels."""
    return -(-rows // PANEL) * PANEL


def empty_matrix(layers: int, rows: int, columns: int) -> Matrix:
    return Matrix(
        aligned((layers, padded(rows) // PANEL, columns // GROUP, PANEL, GROUP), np.int8),
        aligned((layers, padded(rows)), np.int32),
        aligned((layers, padded(rows)), np.float32),
        aligned((layers, padded(rows)), np.float32),
    )


@compiled
def multiply(team, phase, adds, layer, weights, tokens, x, x_scale, out):
    """Compute out = x · Wᵀ · scales + bias, or add that to out, for x [tokens, K] and out [tokens, N padded].

    A chunk is a panel of the weight, for all tokens.
    """
    panels, first_sum, w_scale, bias = weights
    num_panels, groups, x_stride, out_stride = panels.shape[1], panels.shape[2], x.strides[0], out.strides[0]
    panel = take(team, phase, num_panels)
    while panel >= 0:
        w = panels.ctypes.data + layer * panels.strides[0] + panel * panels.strides[1]
        column = 4 * panel * PANEL
        offset = layer * first_sum.strides[0] + column
        sums, scales, biases = first_sum.ctypes.data + offset, w_scale.ctypes.data + offset, bias.ctypes.data + offset
        rows, steps, to = x.ctypes.data, x_scale.ctypes.data, out.ctypes.data + column
        left = tokens
        while left > 0:
            count = 8
            while count > left:
                count //= 2
            _tile(adds, count, rows, x_stride, steps, w, groups, sums, scales, biases, to, out_stride)
            left -= count
            rows, steps, to = rows + count * x_stride, steps + 4 * count, to + count * out_stride
        panel = finish(team, phase, num_panels)
    wait(team, phase, num_panels)


@compiled
def _tile(adds, tokens, x, x_stride, x_scale, w, groups, sums, scales, biases, out, out_stride):
    if adds:
        if tokens == 1:
            _add_1(x, x_stride, x_scale, w, groups, sums, scales, biases, out, out_stride)
        elif tokens == 2:
            _add_2(x, x_stride, x_scale, w, groups, sums, scales, biases, out, out_stride)
        elif tokens == 4:
            _add_4(x, x_stride, x_scale, w, groups, sums, scales, biases, out, out_stride)
        else:
            _add_8(x, x_stride, x_scale, w, groups, sums, scales, biases, out, out_stride)
    elif tokens == 1:
        _write_1(x, x_stride, x_scale, w, groups, sums, scales, biases, out, out_stride)
    elif tokens == 2:
        _write_2(x, x_stride, x_scale, w, groups, sums, scales, biases, out, out_stride)
    elif tokens == 4:
        _write_4(x, x_stride, x_scale, w, groups, sums, scales, biases, out, out_stride)
    else:
        _write_8(x, x_stride, x_scale, w, groups, sums, scales, biases, out, out_stride)


def fill(matrix: Matrix, layer: int, start: int, values: NDArray[np.float32]) -> None:
    """Round values [rows, K] to bytes and put them in the rows from `start` on. A row with NaN is NaN."""
    panels, first_sum, scale, _ = matrix
    _fill(panels[layer].view(np.uint32)[..., 0], first_sum[layer, start:], scale[layer, start:], start, values)


@compiled(kept=True)
def _fill(panels, first_sum, scale, start, values):
    rows, columns = values.shape
    row = np.empty(columns, np.uint8)
    words = row.view(np.uint32)
    for index in range(rows):
        scale[index] = round_row(values[index], row)
        total, n = 0, start + index
        for byte in row:
            total += byte
        # The bytes have 128 added: all of them at once lose it here.
        for group in range(columns // GROUP):
            panels[n // PANEL, group, n % PANEL] = words[group] ^ np.uint32(0x80808080)
        first_sum[index] = 128 * (128 * columns - total)


@compiled(kept=True)
def fill_rows(out, scale, values):
    """Round values [rows, K] float32 to bytes, in the order that they have."""
    row = np.empty(values.shape[1], np.uint8)
    for index in range(len(values)):
        scale[index] = round_row(values[index], row)
        for k in range(len(row)):
            out[index, k] = row[k] ^ 128
