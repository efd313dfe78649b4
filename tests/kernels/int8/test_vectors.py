"""Each vector function against numpy in double precision."""

import numpy as np
import pytest

from streamgen_kernels.int8 import rows, vectors
from streamgen_kernels.int8.arrays import aligned
from streamgen_kernels.int8.native import LANES, compiled


@compiled
def call_sum_of_squares(row):
    return vectors.sum_of_squares(row.ctypes.data, len(row) // LANES)


@compiled
def call_largest_magnitude(row):
    return vectors.largest_magnitude(row.ctypes.data, len(row) // LANES)


@compiled
def call_largest(row):
    return vectors.largest(row.ctypes.data, len(row) // LANES)


@compiled
def call_exponentials(row, largest, scale):
    return vectors.exponentials(row.ctypes.data, len(row) // LANES, largest, scale)


@compiled
def call_gate(row, up):
    vectors.gate(row.ctypes.data, up.ctypes.data, len(row) // LANES)


@compiled
def call_to_bytes(row, factor, out):
    vectors.to_bytes(row.ctypes.data, len(row) // LANES, factor, out.ctypes.data)


@compiled
def call_hadamard(row, block):
    rows._hadamard(row.ctypes.data, len(row) // LANES, block // LANES)


@compiled
def call_from_bytes(row, factor, out):
    vectors.from_bytes(row.ctypes.data, len(row) // LANES, factor, out.ctypes.data)


@compiled
def call_half_bits(row, out):
    for k in range(len(row)):
        out[k] = vectors.half_bits(row[k])


def drawn(size, *, scale=1.0, seed=0):
    row = aligned((size,), np.float32)
    row[:] = np.random.default_rng(seed).standard_normal(size) * scale
    return row


@pytest.mark.parametrize("size", [16, 48, 576])
def test_sums_and_largest(size):
    row = drawn(size)
    assert call_sum_of_squares(row) == pytest.approx((row.astype(float) ** 2).sum(), rel=1e-6)
    assert call_largest_magnitude(row) == np.abs(row).max()
    assert call_largest(row) == row.max()
    assert call_largest(-np.abs(row)) == -np.abs(row).min()


@pytest.mark.parametrize("place", [0, 15, 16, 47])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_broken_number_is_never_lost(place, value):
    row = drawn(48)
    row[place] = value
    assert not np.isfinite(call_largest_magnitude(row))
    assert not np.isfinite(call_sum_of_squares(row))


def test_exponentials_are_right_to_the_last_bits_and_their_sum_is_theirs():
    row = np.linspace(-63.5, 0, 16 * 200, dtype=np.float32)
    exact = np.exp(row.astype(float))
    total = call_exponentials(row, np.float32(0), np.float32(1))
    assert np.abs(row / exact - 1).max() < 2.5e-7
    assert total == pytest.approx(exact.sum(), rel=1e-6)


def test_exponentials_subtract_then_scale_and_end_softly():
    row = np.array([-np.inf, -1e30, 3.0, 5.0] * 4, np.float32)
    call_exponentials(row, np.float32(5), np.float32(0.5))
    assert row[3] == 1
    assert row[2] == pytest.approx(np.exp(-1), rel=1e-6)
    assert 0 <= row[0] < 1e-27
    assert 0 <= row[1] < 1e-27
    # Divided by the sum of a long row, they are still no denormal numbers.
    assert row[0] / 2**24 > np.finfo(np.float32).tiny
    broken = np.full(16, np.nan, np.float32)
    assert np.isnan(call_exponentials(broken, np.float32(0), np.float32(1)))


def test_the_gate_is_silu_times_up():
    gate, up = drawn(64, scale=20), drawn(64, seed=1)
    gate[:4] = -1e4, 1e4, 0, -0.0
    exact = gate.astype(float) / (1 + np.exp(-gate.astype(float).clip(-700))) * up
    call_gate(gate, up)
    assert np.allclose(gate, exact, rtol=1e-6, atol=1e-30)


def test_bytes_are_the_nearest_integers_ties_to_even():
    values = np.array(
        [-127, -126.5, -125.5, -0.5, 0, 0.5, 1.5, 2.5, 126.49, 126.5, 127, 1, -1, 64.25, -64.75, 3], np.float32
    )
    out = np.zeros(16, np.uint8)
    call_to_bytes(values, np.float32(1), out)
    assert np.array_equal(out.astype(int) - 128, np.rint(values))
    back = np.zeros(16, np.float32)
    call_from_bytes((out ^ 128).view(np.int8), np.float32(0.25), back)
    assert np.array_equal(back, np.rint(values) * 0.25)


@pytest.mark.parametrize("size, block", [(16, 16), (48, 16), (96, 32), (1536, 512), (2048, 1024)])
def test_the_transform_is_a_hadamard_matrix_for_each_block(size, block):
    row = drawn(size)
    matrix = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    expected = row.astype(float).reshape(-1, block) @ matrix
    call_hadamard(row, block)
    assert np.allclose(row, expected.ravel(), rtol=1e-5, atol=1e-4)


def test_halves_are_rounded_as_numpy_rounds_them_and_do_not_overflow():
    row = np.concatenate((drawn(64, scale=100), np.array([0, -0.0, 65504, 65519, 1e6, -1e9, 6e-8, np.nan], np.float32)))
    out = np.zeros(len(row), np.uint16)
    call_half_bits(row, out)
    expected = row.clip(-65504, 65504).astype(np.float16)
    assert np.array_equal(out.view(np.float16), expected, equal_nan=True)
