"""Attention over gathered blocks, by torch's flash kernel for CPUs.

Rows with one query, the usual case, are computed together: all query heads of a key-value head stand where the kernel
expects queries, so that grouped heads cost no copy of the keys. The order in which that kernel adds depends on the
length it is given. So that a row's result does not depend on its neighbours, its length is padded to a *length
class* that is a function of the row alone, and only rows of one class share a call.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001
_FINEST_CLASS = 64
_CLASSES_AN_OCTAVE = 8


@dataclass(frozen=True)
class _SingleQueries:
    """Rows of one length class with one query each. `rows` and `tokens` are None where they are all, in order."""

    rows: Tensor | None
    tokens: Tensor | None
    length: int
    mask: Tensor


@dataclass(frozen=True)
class _ManyQueries:
    """One row with several queries; `mask` is None for a prompt from its start."""

    row: int
    start: int
    end: int
    context_len: int
    mask: Tensor | None


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    max_query_len: int,
    max_context_len: int,
    counters: Counter[str] | None = None,
) -> Tensor:
    """See `operators.PagedAttention`."""
    del max_query_len, max_context_len
    single, many = _plan(tuple(query_start.tolist()), tuple(context_lens.tolist()))
    out = None
    if len(single) != 1 or single[0].rows is not None or many:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for group in single:
        attended = _attend_single(q, k_cache, v_cache, block_table, group, scale)
        if out is None:
            out = attended
        elif group.tokens is None:
            out.copy_(attended)
        else:
            out.index_copy_(0, group.tokens, attended)
    assert out is not None
    for row in many:
        out[row.start : row.end] = _attend_many(
            q[row.start : row.end], k_cache, v_cache, block_table[row.row], row, scale
        )
    if counters is not None:
        counters["paged_attention.single"] += len(single)
        counters["paged_attention.many"] += len(many)
    return out


def length_class(context_len: int) -> int:
    """The length that a row with one query is padded to: multiples of 64, and from 512 on eight to an octave."""
    step = max(_FINEST_CLASS, (1 << (context_len - 1).bit_length()) // (2 * _CLASSES_AN_OCTAVE))
    return -(-context_len // step) * step


# The same for all layers of a step, and made anew for each step.
@lru_cache(maxsize=4)
def _plan(
    query_start: tuple[int, ...], context_lens: tuple[int, ...]
) -> tuple[tuple[_SingleQueries, ...], tuple[_ManyQueries, ...]]:
    classes: dict[int, list[int]] = {}
    many = []
    for row, context_len in enumerate(context_lens):
        start, end = query_start[row], query_start[row + 1]
        if end - start == 1:
            classes.setdefault(length_class(context_len), []).append(row)
        elif end > start:
            mask = None
            if end - start < context_len:
                position = torch.arange(context_len - (end - start), context_len)
                mask = _bias(torch.arange(context_len) <= position[:, None])
            many.append(_ManyQueries(row, start, end, context_len, mask))
    single = []
    for length, rows in classes.items():
        lens = torch.tensor([context_lens[row] for row in rows])
        mask = _bias(torch.arange(length) < lens[:, None])[:, None, None, :]
        everything = len(rows) == len(context_lens)
        tokens = None if everything else torch.tensor([query_start[row] for row in rows])
        single.append(_SingleQueries(None if everything else torch.tensor(rows), tokens, length, mask))
    return tuple(single), tuple(many)


def _bias(visible: Tensor) -> Tensor:
    return torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)


def _attend_single(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, group: _SingleQueries, scale: float
) -> Tensor:
    _, block_size, kv_heads, size = k_cache.shape
    if group.rows is not None:
        q, block_table = q.index_select(0, group.tokens), block_table.index_select(0, group.rows)
    num_rows, heads, _ = q.shape
    num_blocks = -(-group.length // block_size)
    blocks = _first_blocks(block_table, num_blocks).reshape(-1)
    shape = (num_rows, num_blocks * block_size, kv_heads, size)
    keys, values = (
        cache.index_select(0, blocks).view(shape)[:, : group.length].transpose(1, 2) for cache in (k_cache, v_cache)
    )
    queries = q.reshape(num_rows, kv_heads, heads // kv_heads, size)
    mask = group.mask if q.dtype == torch.float32 else group.mask.to(q.dtype)
    return _flash(queries, keys, values, attn_mask=mask, scale=scale)[0].reshape(num_rows, heads, size)


def _first_blocks(block_table: Tensor, num_blocks: int) -> Tensor:
    """The first blocks of each row; a table narrower than the length class is filled up with the padding block."""
    width = block_table.shape[1]
    if num_blocks <= width:
        return block_table[:, :num_blocks]
    return torch.nn.functional.pad(block_table, (0, num_blocks - width))


def _attend_many(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, blocks: Tensor, row: _ManyQueries, scale: float
) -> Tensor:
    _, block_size, kv_heads, size = k_cache.shape
    num_queries, heads, _ = q.shape
    group = heads // kv_heads
    blocks = blocks[: -(-row.context_len // block_size)]
    # Key-value heads stand where the kernel expects a batch, so that their query heads share them without a copy.
    keys, values = (
        cache.index_select(0, blocks)
        .view(-1, kv_heads, size)[: row.context_len]
        .transpose(0, 1)[:, None]
        .expand(-1, group, -1, -1)
        for cache in (k_cache, v_cache)
    )
    queries = q.reshape(num_queries, kv_heads, group, size).permute(1, 2, 0, 3)
    mask = row.mask if row.mask is None or q.dtype == torch.float32 else row.mask.to(q.dtype)
    out = _flash(queries, keys, values, is_causal=mask is None, attn_mask=mask, scale=scale)[0]
    return out.permute(2, 0, 1, 3).reshape(num_queries, heads, size)
