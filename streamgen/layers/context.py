from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LayerKV:
    """Keys and values of one layer: each [num_blocks, block_size, kv_heads, head_dim]."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class GroupContext:
    """What attention needs of the layers that share block tables."""

    layers: Sequence[LayerKV]
    block_table: Tensor
    """[R, width] int32."""
    slot_mapping: Tensor
    """[T] int64: block · block_size + offset where each token's keys and values go; negative to skip."""


@dataclass(frozen=True)
class ForwardContext:
    """One step as the model sees it: T tokens of R rows, flattened. A row's tokens are consecutive."""

    positions: Tensor
    """[T] int64."""
    query_start: Tensor
    """[R + 1] int32: row r has tokens query_start[r] to query_start[r + 1]."""
    context_lens: Tensor
    """[R] int32: tokens of each row after this step."""
    max_query_len: int
    max_context_len: int
    groups: Sequence[GroupContext]
