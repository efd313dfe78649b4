"""Products are exact sums of integers, in every instruction set that the kernels know."""

import os
import subprocess
import sys

import numpy as np
import pytest

from streamgen_kernels.int8.native import compiled
from streamgen_kernels.int8.product import empty_matrix, fill, fill_rows, multiply, padded
from streamgen_kernels.int8.target import INTEGER_DOT, IS_X86
from streamgen_kernels.int8.team import Team


@compiled
def product(team, adds, layer, weights, tokens, x, x_scale, out):
    multiply(team, np.int64(0), adds, layer, weights, tokens, x, x_scale, out)


def integers(shape, seed, low=-127, high=128):
    return np.random.default_rng(seed).integers(low, high, shape)


def check(rows, columns, tokens, adds, threads=2):
    """A product of extreme bytes against int64, in the second of two layers."""
    weights = empty_matrix(2, rows, columns)
    w = integers((rows, columns), 1)
    w[0], w[-1] = 127, -127
    steps = np.random.default_rng(2).uniform(0.5, 2, rows).astype(np.float32)
    # A row is given as floats whose largest magnitude is 127 steps, so that it is rounded to itself.
    w[:, 0] = 127
    fill(weights, 1, 0, (w * steps[:, None]).astype(np.float32))
    weights.bias[1, :rows] = np.random.default_rng(3).standard_normal(rows)
    x = integers((tokens, columns), 4)
    x[0] = 127
    x[-1] = -127
    # A row's stride is its own: what lies behind a row must not matter.
    stored = np.full((len(x), columns + 64), 255, np.uint8)
    stored[:, :columns] = x + 128
    x_scale = np.random.default_rng(5).uniform(0.5, 2, tokens).astype(np.float32)
    out = np.full((tokens + 1, padded(rows)), 3.0, np.float32)
    Team(threads, 1).run(product, adds, 1, weights, tokens, stored, x_scale, out)
    expected = (x @ w.T) * x_scale[:, None] * weights.scale[1, :rows] + weights.bias[1, :rows]
    if adds:
        expected = expected + 3
    assert np.allclose(weights.scale[1, :rows], steps, rtol=1e-6)
    assert np.allclose(out[:tokens, :rows], expected, rtol=1e-5, atol=1e-3)
    assert (out[tokens] == 3).all(), "nothing is written behind the last token"


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 7, 8, 9, 23])
def test_products_of_any_number_of_tokens(adds, tokens):
    check(96, 48, tokens, adds)


@pytest.mark.parametrize("rows, columns", [(1, 16), (31, 32), (33, 16), (100, 1536), (576, 576)])
def test_products_of_any_shape(rows, columns):
    check(rows, columns, 5, adds=False)


@pytest.mark.parametrize("adds", [False, True])
def test_sums_are_exact(adds):
    """With scales of one and sums below 2^24, every bit must be right."""
    weights = empty_matrix(1, 32, 64)
    w = integers((32, 64), 1)
    w[:, 0] = 127
    fill(weights, 0, 0, w.astype(np.float32))
    weights.scale[:] = 1
    x = integers((16, 64), 2)
    out = np.zeros((16, 32), np.float32)
    ones = np.ones(16, np.float32)
    Team(1, 1).run(product, adds, 0, weights, len(out), (x + 128).astype(np.uint8), ones, out)
    assert np.array_equal(out.astype(int), x @ w.T)


def test_a_token_is_the_same_bits_in_any_batch_and_on_any_number_of_threads():
    weights = empty_matrix(1, 96, 80)
    fill(weights, 0, 0, np.random.default_rng(0).standard_normal((96, 80)).astype(np.float32))
    x = integers((33, 80), 1, 0, 256).astype(np.uint8)
    scale = np.random.default_rng(2).uniform(0.5, 2, 33).astype(np.float32)

    def result(first, last, threads):
        out = np.zeros((last - first, 96), np.float32)
        Team(threads, 1).run(product, False, 0, weights, last - first, x[first:last], scale[first:last], out)
        return out

    together = result(0, 33, 3)
    for token in range(33):
        assert np.array_equal(result(token, token + 1, 1)[0], together[token])


def test_parts_are_rounded_as_the_whole_and_a_broken_row_stays_broken():
    values = np.random.default_rng(0).standard_normal((40, 32)).astype(np.float32)
    values[7, 3], values[9], values[11, 31] = np.nan, 0, -np.inf
    whole, parts = empty_matrix(1, 40, 32), empty_matrix(1, 40, 32)
    fill(whole, 0, 0, values)
    fill(parts, 0, 13, values[13:])
    fill(parts, 0, 0, values[:13])
    good = np.isfinite(values).all(1)
    for one, other in zip(whole, parts, strict=True):
        assert np.array_equal(one, other, equal_nan=one.dtype == np.float32)
    assert np.array_equal(np.isfinite(whole.scale[0, :40]), good)
    bytes_, scale = np.zeros((40, 32), np.int8), np.zeros(40, np.float32)
    fill_rows(bytes_, scale, values)
    assert np.array_equal(np.isfinite(scale), good)
    error = np.abs(bytes_[good] * scale[good, None] - values[good])
    assert (error <= scale[good, None] * 0.5001).all()
    assert (np.abs(bytes_[good & (scale > 1e-20)].astype(int)).max(1) == 127).all()
    assert (bytes_[9] == 0).all()


def other_processors():
    """(name, features, the instructions that follow) of what this machine can run besides its own."""
    vnni = "+avx2,+fma,+f16c,+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512vnni"
    if not IS_X86:
        return []
    known = [("haswell", "+avx2,+fma,+f16c", "avx2"), ("ivybridge", "+avx,+f16c", "plain")]
    return known + [("cascadelake", vnni, "avx512vnni")] * (INTEGER_DOT == "avx512vnni")


@pytest.mark.slow
@pytest.mark.parametrize("cpu, features, dot", other_processors())
def test_products_in_another_instruction_set(cpu, features, dot, tmp_path):
    code = (
        "from streamgen_kernels.int8.target import INTEGER_DOT\n"
        f"assert INTEGER_DOT == {dot!r}, INTEGER_DOT\n"
        "from tests.kernels.int8.test_product import check, test_sums_are_exact\n"
        "for adds in (False, True):\n"
        "    test_sums_are_exact(adds)\n"
        "    for tokens in (1, 3, 13):\n"
        "        check(65, 48, tokens, adds)\n"
    )
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": cpu,
        "NUMBA_CPU_FEATURES": features,
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=170)
