"""Attention over tiles against double precision, and that a query's bits depend on nothing but its own row."""

import numpy as np
import pytest

from streamgen_kernels.int8.attention import QUERY_TOKENS, attend, key_shape, scratch, value_shape
from streamgen_kernels.int8.native import compiled
from streamgen_kernels.int8.rows import rotate_and_store
from streamgen_kernels.int8.team import Team

ZERO = np.int64(0)


@compiled
def store(team, *arguments):
    rotate_and_store(team, ZERO, *arguments)


@compiled
def run_attention(team, *arguments):
    attend(team, ZERO, *arguments)


class Case:
    """Rows of `lengths` tokens, of which the last `queries` are computed; every unused number is NaN."""

    def __init__(self, lengths, heads=6, kv_heads=2, size=16, block_size=16, seed=0):
        self.heads, self.kv_heads, self.size, self.block_size = heads, kv_heads, size, block_size
        self.lengths = lengths
        generator = np.random.default_rng(seed)
        self.width = (heads + 2 * kv_heads) * size
        self.qkv = [generator.standard_normal((n, self.width)).astype(np.float32) for n in lengths]
        blocks_a_row = [-(-n // block_size) for n in lengths]
        order = generator.permutation(sum(blocks_a_row)).astype(np.int32)
        self.table = np.full((len(lengths), max(blocks_a_row) + 1), 10**6, np.int32)
        for row, (start, n) in enumerate(zip(np.cumsum(blocks_a_row) - blocks_a_row, blocks_a_row, strict=True)):
            self.table[row, :n] = order[start : start + n]
        dims = (sum(blocks_a_row), block_size, kv_heads, size)
        nan = np.float16(np.nan).view(np.uint16)
        self.keys = np.full((2, *key_shape(*dims)), nan, np.uint16)
        self.values = np.full((2, *value_shape(*dims)), nan, np.uint16)
        angles = generator.uniform(-3, 3, (max(lengths), size // 2))
        self.cos_sin = np.concatenate((np.cos(angles), np.sin(angles)), axis=1).astype(np.float32)

    def compute(self, parts, threads=2):
        """Queries (row, first, last) of a step, together: their outputs, one array a part."""
        positions = np.concatenate([np.arange(first, last) for _, first, last in parts])
        rows = np.concatenate([np.full(last - first, row) for row, first, last in parts])
        qkv = np.concatenate([self.qkv[row][first:last] for row, first, last in parts])
        slots = self.table[rows, positions // self.block_size].astype(np.int64) * self.block_size
        slots += positions % self.block_size
        none = np.zeros((0, 0), np.float32)
        team, n = Team(threads, 1), len(positions)
        team.run(
            store, n, qkv, positions, slots, self.cos_sin, none, none, np.float32(0), 1, self.keys, self.values,
            self.block_size, self.heads,
        )  # fmt: skip
        tiles, start = [], 0
        for index, (_, first, last) in enumerate(parts):
            tiles += [
                (index, start + token, min(QUERY_TOKENS, last - first - token))
                for token in range(0, last - first, QUERY_TOKENS)
            ]
            start += last - first
        table = self.table[[row for row, _, _ in parts]]
        out = np.full((n, self.heads * self.size), np.nan, np.float32)
        group = self.heads // self.kv_heads
        rooms = scratch(threads, QUERY_TOKENS * group, self.size, max(self.lengths))
        for room in rooms:
            room[:] = np.nan
        team.run(
            run_attention, qkv, positions, np.array(tiles), table, 1, self.keys, self.values, self.block_size,
            group, np.float32(self.size**-0.5), rooms, out,
        )  # fmt: skip
        team.close()
        ends = np.cumsum([last - first for _, first, last in parts])
        return np.split(out, ends[:-1])

    def expected(self, row):
        """All of a row's outputs in double precision, from keys and values rounded to float16."""
        n, size = self.lengths[row], self.size
        x = self.qkv[row].astype(float).reshape(n, -1, size)
        cos, sin = np.split(self.cos_sin[:n, None].astype(float), 2, axis=-1)
        first, second = np.split(x[:, : self.heads + self.kv_heads], 2, axis=-1)
        turned = np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)
        q = turned[:, : self.heads]
        k = turned[:, self.heads :].astype(np.float16).astype(float).repeat(self.heads // self.kv_heads, axis=1)
        v = x[:, self.heads + self.kv_heads :].astype(np.float16).astype(float)
        v = v.repeat(self.heads // self.kv_heads, axis=1)
        scores = np.einsum("ihd,jhd->hij", q, k) * size**-0.5
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hij,jhd->ihd", weights, v).reshape(n, -1)


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (6, 2), (5, 1), (7, 1), (4, 2)])
@pytest.mark.parametrize("size", [8, 16, 64, 80, 128])
def test_attention_of_many_shapes(heads, kv_heads, size):
    case = Case([1, 5, 17, 40], heads, kv_heads, size)
    for row, out in enumerate(case.compute([(row, 0, n) for row, n in enumerate(case.lengths)])):
        assert np.abs(out - case.expected(row)).max() < 3e-3


@pytest.mark.parametrize("block_size", [1, 4, 15, 16, 17, 24, 32, 64])
def test_blocks_of_any_size(block_size):
    case = Case([1, 16, 33, 70], block_size=block_size)
    for row, out in enumerate(case.compute([(row, 0, n) for row, n in enumerate(case.lengths)])):
        assert np.abs(out - case.expected(row)).max() < 3e-3


@pytest.mark.parametrize("kv_heads", [2, 6])
@pytest.mark.parametrize("chunk", [1, 3, 4, 16, 19])
def test_a_query_is_the_same_bits_in_any_chunk_and_batch(kv_heads, chunk):
    case = Case([50, 7], kv_heads=kv_heads)
    whole = case.compute([(0, 0, 50), (1, 0, 7)])
    again = Case([50, 7], kv_heads=kv_heads)
    parts = [again.compute([(0, first, min(first + chunk, 50))], threads=1)[0] for first in range(0, 50, chunk)]
    assert np.array_equal(np.concatenate(parts), whole[0])
    assert np.array_equal(again.compute([(1, 0, 7)])[0], whole[1])


def test_what_lies_behind_a_row_is_never_read():
    """A block's last holder left NaN there; see also the NaN in every unused number of the other tests."""
    case = Case([21])
    expected = case.compute([(0, 0, 21)])[0]
    case.keys[...] = case.values[...] = np.float16(np.inf).view(np.uint16)
    assert np.array_equal(case.compute([(0, 0, 21)])[0], expected)


def test_a_query_sees_its_own_token_and_none_after_it():
    case, other = Case([33]), Case([33])
    other.qkv[0][32] += 1
    before, after = case.compute([(0, 0, 33)])[0], other.compute([(0, 0, 33)])[0]
    assert np.array_equal(before[:32], after[:32])
    assert np.abs(before[32] - after[32]).max() > 0.05
