"""What is done to each token's row between products: norms, rotation, the gate, and rounding to bytes."""

from __future__ import annotations

import numpy as np

from streamgen_kernels.int8 import vectors
from streamgen_kernels.int8.native import LANES, VECTOR_BYTES, compiled
from streamgen_kernels.int8.team import finish, take, wait

_LIMIT = np.float32(127)
"""Largest magnitude of a rounded number."""
_LEAST_STEP = np.float32(1e-30)
"""Keeps a row of zeros from being divided by zero."""
_ONE = np.float32(1)


@compiled
def round_row(row, out):
    """Round a row of floats to bytes, with 128 added; return the size of a step."""
    return _round(row.ctypes.data, len(row) // LANES, out.ctypes.data)


@compiled
def _round(row, size, out):
    step = vectors.largest_magnitude(row, size) / _LIMIT + _LEAST_STEP
    vectors.to_bytes(row, size, _ONE / step, out)
    return step


@compiled
def embed(team, phase, tokens, token_ids, embedding, embedding_scale, residual):
    """Look the tokens' embeddings up: the beginning of their residual streams."""
    token = take(team, phase, tokens)
    while token >= 0:
        row = embedding.ctypes.data + token_ids[token] * embedding.strides[0]
        to = residual.ctypes.data + token * residual.strides[0]
        vectors.from_bytes(row, embedding.shape[1] // LANES, embedding_scale[token_ids[token]], to)
        token = finish(team, phase, tokens)
    wait(team, phase, tokens)


@compiled
def norm_to_bytes(team, phase, tokens, residual, hidden_size, eps, x, x_scale):
    """RMSNorm without weights (they are folded into the projections), rounded to bytes.

    The norm only scales the row, so that all of it goes into the row's scale.
    """
    token = take(team, phase, tokens)
    while token >= 0:
        row = residual.ctypes.data + token * residual.strides[0]
        size = hidden_size // LANES
        inverse = _ONE / np.sqrt(vectors.sum_of_squares(row, size) / np.float32(hidden_size) + eps)
        x_scale[token] = _round(row, size, x.ctypes.data + token * x.strides[0]) * inverse
        token = finish(team, phase, tokens)
    wait(team, phase, tokens)


@compiled
def norm(team, phase, wanted, residual, eps, out):
    """RMSNorm of the wanted tokens, as floats."""
    index = take(team, phase, len(wanted))
    while index >= 0:
        row = residual.ctypes.data + wanted[index] * residual.strides[0]
        size = out.shape[1] // LANES
        inverse = _ONE / np.sqrt(vectors.sum_of_squares(row, size) / np.float32(out.shape[1]) + eps)
        vectors.scaled(row, size, inverse, out.ctypes.data + index * out.strides[0])
        index = finish(team, phase, len(wanted))
    wait(team, phase, len(wanted))


@compiled
def to_bytes(team, phase, tokens, values, size, x, x_scale):
    """Round rows of floats [tokens, size] to bytes."""
    token = take(team, phase, tokens)
    while token >= 0:
        row = values.ctypes.data + token * values.strides[0]
        x_scale[token] = _round(row, size // LANES, x.ctypes.data + token * x.strides[0])
        token = finish(team, phase, tokens)
    wait(team, phase, tokens)


@compiled
def gate_to_bytes(team, phase, tokens, gate_up, size, block, x, x_scale):
    """silu(gate) · up, turned by Hadamard matrices of `block` numbers, rounded to bytes.

    An outlier here may be a hundred times larger than the rest of its row, and would take the whole range of a byte;
    turned, it is spread over its block (Ashkboos et al., "QuaRot", 2024). The weights behind are turned alike.
    """
    norm = _ONE / np.sqrt(np.float32(block))
    token = take(team, phase, tokens)
    while token >= 0:
        gate = gate_up.ctypes.data + token * gate_up.strides[0]
        vectors.gate(gate, gate + 4 * size, size // LANES)
        _hadamard(gate, size // LANES, block // LANES)
        x_scale[token] = _round(gate, size // LANES, x.ctypes.data + token * x.strides[0]) * norm
        token = finish(team, phase, tokens)
    wait(team, phase, tokens)


@compiled
def _hadamard(row, size, block):
    """The fast Walsh-Hadamard transform of each block, not normed; sizes in vectors, `block` a power of two."""
    vectors.hadamard_within(row, size)
    half = 1
    while half < block:
        for start in range(0, size, 2 * half):
            vectors.butterfly(row + start * VECTOR_BYTES, row + (start + half) * VECTOR_BYTES, half)
        half *= 2


@compiled
def _norm_head(head, weight, eps):
    total = np.float32(0)
    for x in head:
        total += x * x
    inverse = _ONE / np.sqrt(total / np.float32(len(head)) + eps)
    for d in range(len(head)):
        head[d] = head[d] * inverse * weight[d]


@compiled
def rotate_and_store(
    team, phase, tokens, qkv, positions, slots, cos_sin, q_norm, k_norm, eps, layer, keys, values, block_size, q_heads
):
    """Rotate q and k by their positions (after their norms, where the model has those); put k and v away."""
    kv_heads, size = keys.shape[3], keys.shape[4]
    half = size // 2
    # Neighbours in a tile of keys share cache lines, so that a thread takes a tile's worth of a long prompt.
    span = LANES if tokens > 2 * LANES else 1
    chunks = -(-tokens // span)
    chunk = take(team, phase, chunks)
    while chunk >= 0:
        for token in range(chunk * span, min(chunk * span + span, tokens)):
            row, turn = qkv[token], cos_sin[positions[token]]
            for head in range(q_heads + kv_heads):
                x = row[head * size : (head + 1) * size]
                if len(q_norm) > 0:
                    _norm_head(x, q_norm[layer] if head < q_heads else k_norm[layer], eps)
                for d in range(half):
                    first, second = x[d], x[d + half]
                    x[d] = first * turn[d] - second * turn[half + d]
                    x[half + d] = second * turn[d] + first * turn[half + d]
            block, offset = slots[token] // block_size, slots[token] % block_size
            tile, lane = offset // LANES, offset % LANES
            for head in range(kv_heads):
                k, v = (q_heads + head) * size, (q_heads + kv_heads + head) * size
                for d in range(size):
                    keys[layer, block, tile, head, d, lane] = vectors.half_bits(row[k + d])
                    values[layer, block, tile, head, lane, d] = vectors.half_bits(row[v + d])
        chunk = finish(team, phase, chunks)
    wait(team, phase, chunks)
