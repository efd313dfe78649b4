"""Causal attention over paged keys and values, read where they lie.

Keys are kept in tiles of 16 tokens, dimension by dimension, so that one vector holds the same dimension of 16 keys;
values are kept token by token. A query's result is computed in an order that depends on its own length alone: it is
the same, bit for bit, whatever chunk of the prompt or batch the query came in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamgen_kernels.int8 import vectors
from streamgen_kernels.int8.arrays import aligned
from streamgen_kernels.int8.attention_tile import score_tile, value_tile
from streamgen_kernels.int8.native import LANES, compiled
from streamgen_kernels.int8.team import finish, take, wait

QUERY_TOKENS = 4
"""Tokens of a row that go through its keys together."""

_ZERO, _ONE = np.float32(0), np.float32(1)
_FLOAT, _HALF = 4, 2
_score_1, _score_2, _score_3, _score_4 = (score_tile(queries) for queries in (1, 2, 3, 4))
_wide_1, _wide_2, _wide_3, _wide_4 = (value_tile(queries, 4) for queries in (1, 2, 3, 4))
_narrow_1, _narrow_2, _narrow_3, _narrow_4 = (value_tile(queries, 1) for queries in (1, 2, 3, 4))


def key_shape(num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> tuple[int, ...]:
    """[blocks, tiles, kv_heads, head_dim, 16]."""
    return num_blocks, -(-block_size // LANES), kv_heads, head_dim, LANES


def value_shape(num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> tuple[int, ...]:
    """[blocks, tiles, kv_heads, 16, head_dim, padded to whole vectors]."""
    return num_blocks, -(-block_size // LANES), kv_heads, LANES, -(-head_dim // LANES) * LANES


def scratch(threads: int, queries: int, head_dim: int, max_len: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Room for the scores and the sums of each thread's queries: a block's last tile may be written past the end."""
    length = -(-max_len // LANES) * LANES + LANES
    wide = -(-head_dim // LANES) * LANES
    return aligned((threads, queries, length), np.float32), aligned((threads, queries, wide), np.float32)


@compiled
def _score(queries, query, query_stride, keys, next_keys, size, scores, scores_stride):
    done = 0
    while done < queries:
        q, s, left = query + done * query_stride, scores + done * scores_stride, queries - done
        if left >= 4:
            _score_4(q, query_stride, keys, next_keys, size, s, scores_stride)
            done += 4
        elif left == 3:
            _score_3(q, query_stride, keys, next_keys, size, s, scores_stride)
            done += 3
        elif left == 2:
            _score_2(q, query_stride, keys, next_keys, size, s, scores_stride)
            done += 2
        else:
            _score_1(q, query_stride, keys, next_keys, size, s, scores_stride)
            done += 1


@compiled
def _weigh(queries, weight, weight_stride, values, next_values, width, count, out, out_stride):
    row = width * _HALF
    done = 0
    while done < queries:
        w, to, left = weight + done * weight_stride, out + done * out_stride, min(queries - done, 4)
        d = 0
        while d < width:
            v, n, o = values + d * _HALF, next_values + d * _HALF, to + d * _FLOAT
            if width - d >= 4 * LANES:
                if left == 4:
                    _wide_4(w, weight_stride, v, n, row, count, o, out_stride)
                elif left == 3:
                    _wide_3(w, weight_stride, v, n, row, count, o, out_stride)
                elif left == 2:
                    _wide_2(w, weight_stride, v, n, row, count, o, out_stride)
                else:
                    _wide_1(w, weight_stride, v, n, row, count, o, out_stride)
                d += 4 * LANES
            else:
                if left == 4:
                    _narrow_4(w, weight_stride, v, n, row, count, o, out_stride)
                elif left == 3:
                    _narrow_3(w, weight_stride, v, n, row, count, o, out_stride)
                elif left == 2:
                    _narrow_2(w, weight_stride, v, n, row, count, o, out_stride)
                else:
                    _narrow_1(w, weight_stride, v, n, row, count, o, out_stride)
                d += LANES
        done += left


@compiled
def _softmax(scores, length, scale):
    """Turn scores into weights: exp((s - max) · scale) over their sum."""
    size = -(-length // LANES)
    for j in range(length, size * LANES):
        scores[j] = -np.inf
    row = scores.ctypes.data
    total = vectors.exponentials(row, size, vectors.largest(row, size), scale)
    vectors.scaled(row, size, _ONE / total, row)


@compiled
def attend(
    team, phase, qkv, positions, tiles, block_table, layer, keys, values, block_size, group, scale, scratches, out
):
    """Attention of `group` query heads for each key-value head; a chunk is a few tokens of a row and one such head."""
    num_tiles, kv_heads, size, width = keys.shape[2], keys.shape[3], keys.shape[4], values.shape[5]
    token_stride = qkv.strides[0]
    chunks = len(tiles) * kv_heads
    chunk = take(team, phase, chunks)
    while chunk >= 0:
        row, first, tokens = tiles[chunk // kv_heads]
        kv_head = chunk % kv_heads
        scores, sums = scratches[0][team[2]], scratches[1][team[2]]
        stride, sums_stride = scores.strides[0], sums.strides[0]
        query = qkv.ctypes.data + first * token_stride + kv_head * group * size * _FLOAT
        position = positions[first]
        longest = position + tokens
        last = (longest - 1) // block_size

        for block in range(last + 1):
            for tile in range(num_tiles):
                start = block * block_size + tile * LANES
                if start >= longest:
                    break
                key = keys[layer, block_table[row, block], tile, kv_head].ctypes.data
                following = keys[layer, block_table[row, min(block + 1, last)], tile, kv_head].ctypes.data
                to = scores.ctypes.data + start * _FLOAT
                if group == 1:
                    _score(tokens, query, token_stride, key, following, size, to, stride)
                else:
                    for token in range(tokens):
                        q, s = query + token * token_stride, to + token * group * stride
                        _score(group, q, size * _FLOAT, key, following, size, s, stride)
        for index in range(tokens * group):
            _softmax(scores[index], position + index // group + 1, scale)
            for d in range(width):
                sums[index, d] = _ZERO
        for block in range(last + 1):
            for tile in range(num_tiles):
                start = block * block_size + tile * LANES
                if start >= longest:
                    break
                held = min(LANES, block_size - tile * LANES)
                value = values[layer, block_table[row, block], tile, kv_head].ctypes.data
                following = values[layer, block_table[row, min(block + 1, last)], tile, kv_head].ctypes.data
                for token in range(tokens):
                    count = min(held, position + token + 1 - start)
                    if count > 0:
                        weight = scores.ctypes.data + token * group * stride + start * _FLOAT
                        to = sums.ctypes.data + token * group * sums_stride
                        _weigh(group, weight, stride, value, following, width, count, to, sums_stride)
        for index in range(tokens * group):
            token, head = first + index // group, kv_head * group + index % group
            for d in range(size):
                out[token, head * size + d] = sums[index, d]
        chunk = finish(team, phase, chunks)
    wait(team, phase, chunks)
