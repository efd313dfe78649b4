"""Each block format against a scalar decoder written from ggml's block layouts, in float64."""

import struct

import gguf
import numpy as np
import pytest

from streamgen.loader import gguf_dequantize
from streamgen.loader.gguf_dequantize import BLOCK_TYPES, FLOAT_TYPES, to_numpy
from tests.unit.loader.gguf_for_tests import Q, bfloat16_bytes


def half(data, at=0):
    return struct.unpack_from("<e", data, at)[0]


def q4_0(block):
    d, quants = half(block), block[2:]
    return [d * ((q & 15) - 8) for q in quants] + [d * ((q >> 4) - 8) for q in quants]


def q4_1(block):
    d, m, quants = half(block), half(block, 2), block[4:]
    return [d * (q & 15) + m for q in quants] + [d * (q >> 4) + m for q in quants]


def five_bits(high, quants):
    low_half = [(q & 15) | ((high >> j) & 1) << 4 for j, q in enumerate(quants)]
    return low_half + [(q >> 4) | ((high >> (j + 16)) & 1) << 4 for j, q in enumerate(quants)]


def q5_0(block):
    d, (high,) = half(block), struct.unpack_from("<I", block, 2)
    return [d * (q - 16) for q in five_bits(high, block[6:])]


def q5_1(block):
    d, m, (high,) = half(block), half(block, 2), struct.unpack_from("<I", block, 4)
    return [d * q + m for q in five_bits(high, block[8:])]


def q8_0(block):
    return [half(block) * q for q in struct.unpack_from("<32b", block, 2)]


def six_bit_scales(packed):
    """The eight (scale, minimum) pairs in the 12 bytes of a K-block."""
    pairs = []
    for j in range(8):
        if j < 4:
            pairs.append((packed[j] & 63, packed[j + 4] & 63))
        else:
            scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4
            pairs.append((scale, (packed[j + 4] >> 4) | (packed[j] >> 6) << 4))
    return pairs


def q4_k(block):
    d, dmin, pairs, quants = half(block), half(block, 2), six_bit_scales(block[4:16]), block[16:]
    out = []
    for j, (scale, minimum) in enumerate(pairs):
        part = quants[32 * (j // 2) : 32 * (j // 2) + 32]
        out += [d * scale * ((q >> 4) if j % 2 else (q & 15)) - dmin * minimum for q in part]
    return out


def q5_k(block):
    d, dmin, pairs, high, quants = half(block), half(block, 2), six_bit_scales(block[4:16]), block[16:48], block[48:]
    out = []
    for j, (scale, minimum) in enumerate(pairs):
        for i, q in enumerate(quants[32 * (j // 2) : 32 * (j // 2) + 32]):
            value = ((q >> 4) if j % 2 else (q & 15)) + 16 * ((high[i] >> j) & 1)
            out.append(d * scale * value - dmin * minimum)
    return out


def q6_k(block):
    low, high, scales, d = block[:128], block[128:192], struct.unpack_from("<16b", block, 192), half(block, 208)
    out = [0.0] * 256
    for n in range(2):
        for i in range(32):
            for part in range(4):
                nibbles = low[64 * n + i + 32 * (part % 2)]
                value = ((nibbles >> 4) if part >= 2 else (nibbles & 15)) | ((high[32 * n + i] >> (2 * part)) & 3) << 4
                out[128 * n + 32 * part + i] = d * scales[8 * n + 2 * part + i // 16] * (value - 32)
    return out


SCALAR = {
    Q.Q4_0: q4_0,
    Q.Q4_1: q4_1,
    Q.Q5_0: q5_0,
    Q.Q5_1: q5_1,
    Q.Q8_0: q8_0,
    Q.Q4_K: q4_k,
    Q.Q5_K: q5_k,
    Q.Q6_K: q6_k,
}
HALVES = {Q.Q4_1: (0, 2), Q.Q5_1: (0, 2), Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208,)}


def random_blocks(kind, count, seed=0):
    """Random bytes, but for the half-precision scales, which are moderate numbers."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (count, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for at in HALVES.get(kind, (0,)):
        scales = (rng.standard_normal(count) / 8).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(count, 2)
    return blocks


def test_every_supported_block_type_has_a_scalar_truth():
    assert set(SCALAR) == set(BLOCK_TYPES)


@pytest.mark.parametrize("kind", BLOCK_TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("rows, blocks_in_row", [(1, 1), (3, 5), (17, 2)])
def test_blocks_are_dequantized_as_ggml_lays_them_out(kind, rows, blocks_in_row, monkeypatch):
    # Pieces smaller than the tensor, and no divisor of it: the seams between pieces are tested too.
    monkeypatch.setattr(gguf_dequantize, "VALUES_AT_A_TIME", 4 * gguf.GGML_QUANT_SIZES[kind][0])
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random_blocks(kind, rows * blocks_in_row)
    shape = (rows, blocks_in_row * block)
    values = to_numpy(blocks.reshape(rows, blocks_in_row * size), shape, kind)
    truth = np.array([SCALAR[kind](bytes(data)) for data in blocks]).reshape(shape)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, truth, rtol=1e-5, atol=1e-5 * np.abs(truth).max())


@pytest.mark.parametrize("kind", BLOCK_TYPES, ids=lambda kind: kind.name)
def test_the_tolerance_would_catch_one_wrong_bit(kind):
    blocks = random_blocks(kind, 1)
    truth = np.array(SCALAR[kind](bytes(blocks[0])))
    blocks[0, gguf.GGML_QUANT_SIZES[kind][1] // 2 + 1] ^= 0x10
    wrong = to_numpy(blocks, truth.shape, kind)
    assert np.abs(wrong - truth).max() > 100 * 1e-5 * np.abs(truth).max()


def test_more_values_than_one_piece_come_out_whole():
    values = np.random.default_rng(0).standard_normal((300, 512), dtype=np.float32)
    data = gguf.quantize(values, Q.Q8_0)
    assert values.size > 2 * gguf_dequantize.VALUES_AT_A_TIME
    np.testing.assert_array_equal(to_numpy(data, values.shape, Q.Q8_0), gguf.dequantize(data, Q.Q8_0))


def test_floats_keep_their_bits_and_their_memory():
    values = np.arange(-8, 8, dtype=np.float32).reshape(2, 8)
    stored = {Q.F32: values, Q.F16: values.astype("<f2"), Q.BF16: bfloat16_bytes(values)}
    assert set(stored) == set(FLOAT_TYPES)
    for kind, array in stored.items():
        out = to_numpy(array.view(np.uint8), (2, 8), kind)
        assert np.shares_memory(out, array)
        assert out.tobytes() == array.tobytes()
