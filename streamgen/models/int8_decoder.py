"""The decoder in 8 bits on a CPU: the same model as `Decoder`'s, each step one call into compiled code.

Weight rows and activation rows have one scale each, chosen from that row alone, and sums are exact integers: a
token's result is the same, bit for bit, in a batch of any size. The residual stream is rotated (`rotation.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamgen.layers.context import ForwardContext, LayerKV
from streamgen.layers.rotary import cos_sin_table
from streamgen.layers.weight_slot import WeightSlot
from streamgen.models.config import DecoderConfig
from streamgen.models.rotation import turn_block

if TYPE_CHECKING:
    from streamgen_kernels.int8.decoder import Cache
    from streamgen_kernels.int8.product import Matrix

_VECTOR = 16
_PREPARING = "Preparing kernels (10 s the first time)"
_KV_BYTES = 2
"""Of a number in the KV cache, which stays float16."""
MAX_TOKENS = 512
"""Tokens that go through the layers at a time: enough to keep the weights busy, few enough for the cache."""


def int8_refusal(config: DecoderConfig) -> str | None:
    """Why a decoder cannot be computed in 8 bits here, or None."""
    sizes = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads times head_dim": config.num_heads * config.head_dim,
    }
    for name, size in sizes.items():
        if size % _VECTOR:
            return f"{name} ({size}) is not a multiple of {_VECTOR}"
    if config.head_dim % 2:
        return f"head_dim ({config.head_dim}) is odd"
    try:
        from streamgen_kernels.int8.target import refusal

        reason = refusal()
        if reason is None:
            import streamgen_kernels.int8.decoder  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        return f"its kernels cannot be compiled ({error})"
    return reason


def int8_is_fast() -> bool:
    """Whether this processor has instructions for products of bytes that the kernels know."""
    from streamgen_kernels.int8.target import INTEGER_DOT

    return INTEGER_DOT != "plain"


def int8_block_bytes(config: DecoderConfig, block_size: int) -> int:
    """Memory of one KV block in all layers: whole vectors of tokens, and of a value's numbers."""
    tokens = -(-block_size // _VECTOR) * _VECTOR
    value = -(-config.head_dim // _VECTOR) * _VECTOR
    return config.num_layers * config.num_kv_heads * tokens * (config.head_dim + value) * _KV_BYTES


def prepare(progress: Callable[[str, int, int], None] | None = None) -> None:
    """Compile the step, which takes some ten seconds once a machine, and a quarter of one from then on."""
    from streamgen_kernels.int8.decoder import compile_kernels

    if progress is not None:
        progress(_PREPARING, 0, 1)
    compile_kernels()
    if progress is not None:
        progress(_PREPARING, 1, 1)


class CompiledKV:
    """A KVGroup that only the compiled step reads."""

    layers: Sequence[LayerKV] = ()

    def __init__(self, cache: Cache, block_size: int) -> None:
        self.cache = cache
        self.block_size = block_size

    def scrub(self, blocks: Tensor) -> None:
        """Nothing: what lies behind a row's end never counts."""


class Int8Decoder:
    """A `Model`. Used from one thread, which works with `threads` - 1 others."""

    device = torch.device("cpu")

    def __init__(self, config: DecoderConfig, *, max_model_len: int, threads: int) -> None:
        """Args: `config` is a rotated one, for which `int8_refusal` is None."""
        from streamgen_kernels.int8 import decoder as compiled
        from streamgen_kernels.int8.attention import QUERY_TOKENS
        from streamgen_kernels.int8.product import empty_matrix, fill, fill_rows

        self.config = config
        self._compiled = compiled
        self._query_tokens = QUERY_TOKENS
        self._fill, self._fill_rows = fill, fill_rows
        shape = compiled.Shape(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            turn_block=turn_block(config.intermediate_size),
        )
        table = cos_sin_table(config.rope, config.head_dim, config.max_position_embeddings, max_model_len)
        self._weights = compiled.empty_weights(shape, qk_norm=config.qk_norm, cos_sin=table.numpy())
        self._head = empty_matrix(1, config.vocab_size, config.hidden_size)
        self._decoder = compiled.Decoder(
            shape,
            self._weights,
            self._head,
            eps=config.rms_norm_eps,
            max_len=max_model_len,
            threads=threads,
            max_tokens=MAX_TOKENS,
        )
        self._kv: CompiledKV | None = None

    def new_kv(self, num_blocks: int, block_size: int) -> CompiledKV:
        self._kv = CompiledKV(self._compiled.empty_cache(self._decoder.shape, num_blocks, block_size), block_size)
        return self._kv

    def forward(self, token_ids: Tensor, context: ForwardContext, wanted: Tensor) -> Tensor:
        assert self._kv is not None
        ids, positions = token_ids.numpy(), context.positions.numpy()
        group = context.groups[0]
        slots, block_table = group.slot_mapping.numpy(), group.block_table.numpy()
        starts, indices = context.query_start.numpy().astype(np.int64), wanted.numpy()
        parts = []
        for begin in range(0, len(ids), MAX_TOKENS):
            end = min(begin + MAX_TOKENS, len(ids))
            step = self._compiled.Step(
                ids[begin:end],
                positions[begin:end],
                slots[begin:end],
                _query_tiles(starts.clip(begin, end) - begin, self._query_tokens),
                block_table,
                indices[(indices >= begin) & (indices < end)] - begin,
            )
            parts.append(self._decoder.forward(step, self._kv.cache, self._kv.block_size))
        return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.from_numpy(self._decoder.logits(hidden.numpy()))

    def close(self) -> None:
        self._decoder.close()

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Every tensor that the model wants. Norms over the hidden size are folded into what reads them."""
        config, hidden = self.config, self.config.hidden_size
        slots = {
            "model.embed_tokens.weight": WeightSlot((config.vocab_size, hidden), self._load_embedding),
            "lm_head.weight": WeightSlot((config.vocab_size, hidden), self._loader(self._head, 0, 0)),
        }
        for layer in range(config.num_layers):
            slots.update(self._layer_slots(layer))
        return slots

    def _layer_slots(self, layer: int) -> Iterator[tuple[str, WeightSlot]]:
        config, weights, prefix = self.config, self._weights, f"model.layers.{layer}."
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        attended, kv_width = config.num_heads * dim, config.num_kv_heads * dim
        if config.qk_norm:
            for name, norm in (("q_norm", weights.q_norm), ("k_norm", weights.k_norm)):
                yield f"{prefix}self_attn.{name}.weight", WeightSlot((dim,), _copier(norm[layer]))
        merged = (
            (
                weights.qkv,
                hidden,
                ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                (attended, kv_width, kv_width),
                config.qkv_bias,
            ),
            (weights.o, attended, ("self_attn.o_proj",), (hidden,), config.o_bias),
            (weights.gate_up, hidden, ("mlp.gate_proj", "mlp.up_proj"), (inner, inner), config.mlp_bias),
            (weights.down, inner, ("mlp.down_proj",), (hidden,), config.mlp_bias),
        )
        for matrix, columns, names, sizes, bias in merged:
            for name, rows, end in zip(names, sizes, accumulate(sizes), strict=True):
                full, start = prefix + name, end - rows
                yield f"{full}.weight", WeightSlot((rows, columns), self._loader(matrix, layer, start))
                if bias:
                    yield f"{full}.bias", WeightSlot((rows,), _copier(matrix.bias[layer, start:end]))

    def _loader(self, matrix: Matrix, layer: int, start: int) -> Callable[[Tensor], None]:
        return lambda values: self._fill(matrix, layer, start, _array(values))

    def _load_embedding(self, values: Tensor) -> None:
        self._fill_rows(self._weights.embedding, self._weights.embedding_scale, _array(values))


def _query_tiles(starts: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Each row's tokens, starts[r] to starts[r + 1], in runs of at most `most`: [n, 3] (row, first token, tokens)."""
    sizes = np.diff(starts)
    counts = -(-sizes // most)
    row = np.repeat(np.arange(len(sizes)), counts)
    # How many runs of the same row come before.
    before = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = starts[row] + before * most
    return np.stack((row, first, np.minimum(most, starts[row + 1] - first)), axis=1)


def _copier(place: NDArray[Any]) -> Callable[[Tensor], None]:
    def load(values: Tensor) -> None:
        place[:] = _array(values)

    return load


def _array(values: Tensor) -> NDArray[np.float32]:
    return values.to(torch.float32).contiguous().numpy()
