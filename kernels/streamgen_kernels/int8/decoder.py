"""A decoder's step as one compiled function over arrays that are made once."""

from __future__ import annotations

import logging
import pickle
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamgen_kernels.int8.arrays import aligned
from streamgen_kernels.int8.attention import QUERY_TOKENS, attend, key_shape, scratch, value_shape
from streamgen_kernels.int8.compiled_code import keep_no_longer
from streamgen_kernels.int8.native import LANES, compiled
from streamgen_kernels.int8.product import (
    Matrix,
    empty_matrix,
    fill,
    fill_rows,
    multiply,
    padded,
)
from streamgen_kernels.int8.rows import embed, gate_to_bytes, norm, norm_to_bytes, rotate_and_store, to_bytes
from streamgen_kernels.int8.team import Team

logger = logging.getLogger(__name__)

_PHASES_A_LAYER = 10
_ZERO = np.int64(0)
"""A function would be compiled again for each number that stands in a call: this one does not."""


class Shape(NamedTuple):
    """Of the decoder."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    turn_block: int
    """Size of the Hadamard matrices that turn what goes into the MLP's last product: see `rows.gate_to_bytes`."""


class Weights(NamedTuple):
    """All layers' weights of a kind are one array. Norms over the hidden size have none: see `rows.norm_to_bytes`."""

    embedding: NDArray[np.int8]
    """[V, H]."""
    embedding_scale: NDArray[np.float32]
    """[V]."""
    qkv: Matrix
    o: Matrix
    gate_up: Matrix
    down: Matrix
    q_norm: NDArray[np.float32]
    """[L, D], or [0, 0] where heads are not normed."""
    k_norm: NDArray[np.float32]
    cos_sin: NDArray[np.float32]
    """[max_len, D]: cosines, then sines, of each position."""


class Cache(NamedTuple):
    """Keys and values of all layers, the bits of float16; the shapes of one layer's are in `attention`."""

    keys: NDArray[np.uint16]
    values: NDArray[np.uint16]


class Step(NamedTuple):
    """What one step computes: T tokens of R rows; a row's tokens are consecutive."""

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    """[T]: block · block_size + offset of each token's keys and values."""
    tiles: NDArray[np.int64]
    """[n, 3]: (row, first token, number of tokens), at most QUERY_TOKENS of them."""
    block_table: NDArray[np.int32]
    """[R, width]."""
    wanted: NDArray[np.int64]
    """[S]: the tokens whose hidden states are wanted."""


class _Buffers(NamedTuple):
    residual: NDArray[np.float32]
    qkv: NDArray[np.float32]
    attended: NDArray[np.float32]
    gate_up: NDArray[np.float32]
    x: NDArray[np.uint8]
    x_scale: NDArray[np.float32]
    scores: NDArray[np.float32]
    sums: NDArray[np.float32]


def empty_weights(shape: Shape, *, qk_norm: bool, cos_sin: NDArray[np.float32]) -> Weights:
    layers, hidden, size = shape.num_layers, shape.hidden_size, shape.head_dim
    inner, attended = shape.intermediate_size, shape.num_heads * size
    norms = (layers, size) if qk_norm else (0, 0)
    return Weights(
        aligned((shape.vocab_size, hidden), np.int8),
        aligned((shape.vocab_size,), np.float32),
        empty_matrix(layers, attended + 2 * shape.num_kv_heads * size, hidden),
        empty_matrix(layers, hidden, attended),
        empty_matrix(layers, 2 * inner, hidden),
        empty_matrix(layers, hidden, inner),
        np.ones(norms, np.float32),
        np.ones(norms, np.float32),
        cos_sin,
    )


def empty_cache(shape: Shape, num_blocks: int, block_size: int) -> Cache:
    dims = (num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
    return Cache(
        aligned((shape.num_layers, *key_shape(*dims)), np.uint16),
        aligned((shape.num_layers, *value_shape(*dims)), np.uint16),
    )


@compiled(kept=True)
def _forward(team, weights, cache, step, buffers, out, numbers, eps, scale):
    embedding, embedding_scale, qkv_w, o_w, gate_up_w, down_w, q_norm, k_norm, cos_sin = weights
    keys, values = cache
    token_ids, positions, slots, tiles, block_table, wanted = step
    residual, qkv, attended, gate_up, x, x_scale, scores, sums = buffers
    block_size, q_heads, hidden, inner, turn_block = numbers
    n = len(token_ids)
    group, width = q_heads // keys.shape[3], q_heads * keys.shape[4]

    embed(team, _ZERO, n, token_ids, embedding, embedding_scale, residual)
    p = _ZERO + 1
    for layer in range(len(keys)):
        norm_to_bytes(team, p, n, residual, hidden, eps, x, x_scale)
        multiply(team, p + 1, False, layer, qkv_w, n, x, x_scale, qkv)
        rotate_and_store(
            team,
            p + 2,
            n,
            qkv,
            positions,
            slots,
            cos_sin,
            q_norm,
            k_norm,
            eps,
            layer,
            keys,
            values,
            block_size,
            q_heads,
        )
        attend(
            team, p + 3, qkv, positions, tiles, block_table, layer, keys, values, block_size, group, scale,
            (scores, sums), attended,
        )  # fmt: skip
        to_bytes(team, p + 4, n, attended, width, x, x_scale)
        multiply(team, p + 5, True, layer, o_w, n, x, x_scale, residual)
        norm_to_bytes(team, p + 6, n, residual, hidden, eps, x, x_scale)
        multiply(team, p + 7, False, layer, gate_up_w, n, x, x_scale, gate_up)
        gate_to_bytes(team, p + 8, n, gate_up, inner, turn_block, x, x_scale)
        multiply(team, p + 9, True, layer, down_w, n, x, x_scale, residual)
        p += _PHASES_A_LAYER
    norm(team, p, wanted, residual, eps, out)


@compiled(kept=True)
def _logits(team, head, hidden, x, x_scale, out):
    to_bytes(team, _ZERO, len(hidden), hidden, hidden.shape[1], x, x_scale)
    multiply(team, _ZERO + 1, False, _ZERO, head, len(hidden), x, x_scale, out)


class Decoder:
    """The decoder with its threads and buffers. Not for several callers at once."""

    def __init__(
        self,
        shape: Shape,
        weights: Weights,
        head: Matrix,
        *,
        eps: float,
        max_len: int,
        threads: int,
        max_tokens: int = 512,
    ) -> None:
        """Args: `max_tokens` bounds the tokens of a call of `forward`."""
        self.shape = shape
        self._weights = weights
        self._head = head
        self._max_tokens = max_tokens
        self._eps = np.float32(eps)
        self._scale = np.float32(shape.head_dim**-0.5)
        self._team = Team(threads, 2 + _PHASES_A_LAYER * shape.num_layers)
        hidden, inner, size = shape.hidden_size, shape.intermediate_size, shape.head_dim
        width = padded(max(hidden, inner, shape.num_heads * size))
        qkv_width = (shape.num_heads + 2 * shape.num_kv_heads) * size
        queries = QUERY_TOKENS * shape.num_heads // shape.num_kv_heads
        self._buffers = _Buffers(
            aligned((max_tokens, padded(hidden)), np.float32),
            aligned((max_tokens, padded(qkv_width)), np.float32),
            aligned((max_tokens, shape.num_heads * size), np.float32),
            aligned((max_tokens, padded(2 * inner)), np.float32),
            aligned((max_tokens, width), np.uint8),
            aligned((max_tokens,), np.float32),
            *scratch(threads, queries, size, max_len),
        )
        self._logits = aligned((0, 0), np.float32)

    def forward(self, step: Step, cache: Cache, block_size: int) -> NDArray[np.float32]:
        """Normed hidden states [S, H] of the wanted tokens, of at most max_tokens tokens."""
        # The compiled code looks at no bounds.
        assert len(step.token_ids) <= self._max_tokens
        assert step.token_ids.dtype == step.positions.dtype == step.slots.dtype == step.wanted.dtype == np.int64
        shape = self.shape
        out = np.empty((len(step.wanted), shape.hidden_size), np.float32)
        numbers = (
            block_size,
            shape.num_heads,
            shape.hidden_size,
            shape.intermediate_size,
            shape.turn_block,
        )
        self._team.run(_forward, self._weights, cache, step, self._buffers, out, numbers, self._eps, self._scale)
        return out

    def logits(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of hidden [R, H]: [R, V], valid until the next call."""
        rows = len(hidden)
        if len(self._logits) < rows:
            self._logits = aligned((rows, padded(self.shape.vocab_size)), np.float32)
        x, x_scale = self._buffers.x, self._buffers.x_scale
        for begin in range(0, rows, self._max_tokens):
            piece = slice(begin, min(begin + self._max_tokens, rows))
            self._team.run(_logits, self._head, hidden[piece], x, x_scale, self._logits[piece])
        return self._logits[:rows, : self.shape.vocab_size]

    def close(self) -> None:
        self._team.close()


def compile_kernels() -> None:
    """Compile everything, or read what an earlier process compiled. Takes some ten seconds, or a quarter of one.

    All models take the same code: it is the smallest one's first step. Code on disk that is damaged is made anew.
    """
    try:
        _first_step()
    except (OSError, EOFError, pickle.UnpicklingError, ValueError, KeyError, AttributeError, ImportError) as error:
        logger.warning("The kernels' code on disk cannot be used and is dropped: %s", error)
        keep_no_longer()
        _first_step()


def _first_step() -> None:
    shape = Shape(LANES, LANES, LANES, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=LANES, turn_block=LANES)
    weights = empty_weights(shape, qk_norm=True, cos_sin=np.zeros((1, LANES), np.float32))
    head = empty_matrix(1, LANES, LANES)
    fill(head, 0, 0, np.zeros((LANES, LANES), np.float32))
    fill_rows(weights.embedding, weights.embedding_scale, np.zeros((LANES, LANES), np.float32))
    decoder = Decoder(shape, weights, head, eps=1.0, max_len=1, threads=1, max_tokens=1)
    zero = np.zeros(1, np.int64)
    step = Step(zero, zero, zero, np.array([[0, 0, 1]]), np.zeros((1, 1), np.int32), zero)
    decoder.logits(decoder.forward(step, empty_cache(shape, 1, LANES), LANES))
