"""Causal attention over the paged KV cache, by two paths that one call takes for different rows:

- *split*: rows with few queries (decode, drafts). A program holds all queries of one row that read one key-value
  head, and a part of the context; a second kernel merges the parts by their log-sum-exp (Dao et al. 2023,
  Flash-Decoding). Row lengths are read from device memory, so a captured graph serves any lengths.
- *tile*: rows with many queries (chunks of prompts). A program holds a tile of them and walks the context once.

Both pack the query heads of a key-value head into the rows of the matrix product (GQA packing), so that each key is
read once for all of them, and use the online softmax (Milakov and Gimelshein 2018), in base 2.
"""

from collections import Counter
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

_SPLIT_M = 16
"""Rows of the split path's matrix product: the least that tl.dot takes."""
_TILE_M = 128
_BLOCK_N = 64
_MAX_SPLITS = 32
_MIN_SPLIT_TOKENS = 256
_LOG2_E = 1.4426950408889634


@triton.jit
def _attend(
    q,
    q_position,
    begin,
    end,
    table_ptr,
    k_ptr,
    v_ptr,
    stride_block,
    stride_slot,
    scale_log2,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Softmax-weighted values of tokens [begin, end) for q [M, D] at positions [M] (-1 for a row of padding).

    Returns (accumulator [M, D], sum of weights [M], largest score [M]), scores in base 2; all zero and -inf for a
    query that sees none of the tokens.
    """
    column = tl.arange(0, BLOCK_D)
    offset = tl.arange(0, BLOCK_N)
    in_head = column < HEAD_SIZE
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    accumulator = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for first in range(begin, end, BLOCK_N):
        token = first + offset
        present = token < end
        block = tl.load(table_ptr + token // BLOCK_SIZE, mask=present, other=0).to(tl.int64)
        at = block * stride_block + (token % BLOCK_SIZE) * stride_slot
        k = tl.load(k_ptr + at[None, :] + column[:, None], mask=present[None, :] & in_head[:, None], other=0.0)
        score = tl.dot(q, k, input_precision="ieee") * scale_log2
        score = tl.where(present[None, :] & (token[None, :] <= q_position[:, None]), score, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(score, axis=1))
        # A query that has seen nothing yet has no largest score; -inf minus -inf would be NaN.
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weight = tl.exp2(score - shift[:, None])
        fade = tl.exp2(largest - shift)
        # What lies beyond the context is never read: another request's NaN must not pass through a weight of 0.
        v = tl.load(v_ptr + at[:, None] + column[None, :], mask=present[:, None] & in_head[None, :], other=0.0)
        accumulator = accumulator * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        total = total * fade + tl.sum(weight, axis=1)
        largest = new_largest
    return accumulator, total, largest


@triton.jit(do_not_specialize=["max_queries"])
def _split_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    block_table_ptr,
    query_start_ptr,
    context_lens_ptr,
    out_ptr,
    partial_ptr,
    lse_ptr,
    scale_log2,
    max_queries,
    stride_q_token,
    stride_q_head,
    stride_block,
    stride_slot,
    stride_kv_head,
    stride_table,
    GROUP: tl.constexpr,
    SHORT: tl.constexpr,
    MERGED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    num_heads = tl.num_programs(1) * GROUP
    num_splits = tl.num_programs(2)
    start = tl.load(query_start_ptr + row)
    num_queries = tl.load(query_start_ptr + row + 1) - start
    context_len = tl.load(context_lens_ptr + row)
    split_len = tl.cdiv(tl.cdiv(context_len, num_splits), BLOCK_N) * BLOCK_N
    begin = split * split_len
    if (num_queries > 0) & (num_queries <= SHORT) & (begin < context_len):
        lane = tl.arange(0, BLOCK_M)
        query = lane // GROUP
        head = kv_head * GROUP + lane % GROUP
        real = query < num_queries
        column = tl.arange(0, BLOCK_D)
        inside = real[:, None] & (column < HEAD_SIZE)[None, :]
        token = (start + query).to(tl.int64)
        source = token * stride_q_token + head * stride_q_head
        q = tl.load(q_ptr + source[:, None] + column[None, :], mask=inside, other=0.0)
        accumulator, total, largest = _attend(
            q,
            tl.where(real, context_len - num_queries + query, -1),
            begin,
            tl.minimum(begin + split_len, context_len),
            block_table_ptr + row.to(tl.int64) * stride_table,
            k_cache_ptr + kv_head * stride_kv_head,
            v_cache_ptr + kv_head * stride_kv_head,
            stride_block,
            stride_slot,
            scale_log2,
            BLOCK_SIZE,
            HEAD_SIZE,
            BLOCK_M,
            BLOCK_N,
            BLOCK_D,
        )
        # Early queries of a row may see nothing of its last part; it then weighs exp2(-inf) = 0 in the merge.
        value = accumulator / tl.where(total == 0.0, 1.0, total)[:, None]
        if MERGED:
            target = token * num_heads + head
            tl.store(
                out_ptr + target[:, None] * HEAD_SIZE + column[None, :], value.to(out_ptr.dtype.element_ty), mask=inside
            )
        else:
            part = ((row.to(tl.int64) * max_queries + query) * num_heads + head) * num_splits + split
            tl.store(partial_ptr + part[:, None] * HEAD_SIZE + column[None, :], value, mask=inside)
            tl.store(lse_ptr + part, largest + tl.log2(tl.where(total == 0.0, 1.0, total)), mask=real)


@triton.jit(do_not_specialize=["max_queries", "num_splits"])
def _merge_kernel(
    partial_ptr,
    lse_ptr,
    query_start_ptr,
    context_lens_ptr,
    out_ptr,
    max_queries,
    num_splits,
    SHORT: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0)
    query = tl.program_id(1)
    head = tl.program_id(2)
    num_heads = tl.num_programs(2)
    start = tl.load(query_start_ptr + row)
    num_queries = tl.load(query_start_ptr + row + 1) - start
    context_len = tl.load(context_lens_ptr + row)
    if (query < num_queries) & (num_queries <= SHORT):
        split_len = tl.cdiv(tl.cdiv(context_len, num_splits), BLOCK_N) * BLOCK_N
        split = tl.arange(0, BLOCK_S)
        column = tl.arange(0, BLOCK_D)
        used = split < tl.cdiv(context_len, split_len)
        part = ((row.to(tl.int64) * max_queries + query) * num_heads + head) * num_splits + split
        lse = tl.load(lse_ptr + part, mask=used, other=float("-inf"))
        weight = tl.exp2(lse - tl.max(lse, axis=0))
        value = tl.load(
            partial_ptr + part[:, None] * HEAD_SIZE + column[None, :],
            mask=used[:, None] & (column < HEAD_SIZE)[None, :],
            other=0.0,
        )
        merged = tl.sum(value * weight[:, None], axis=0) / tl.sum(weight, axis=0)
        target = (start + query).to(tl.int64) * num_heads + head
        tl.store(out_ptr + target * HEAD_SIZE + column, merged.to(out_ptr.dtype.element_ty), mask=column < HEAD_SIZE)


@triton.jit(do_not_specialize=["num_rows"])
def _tile_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    block_table_ptr,
    query_start_ptr,
    context_lens_ptr,
    out_ptr,
    scale_log2,
    num_rows,
    stride_q_token,
    stride_q_head,
    stride_block,
    stride_slot,
    stride_kv_head,
    stride_table,
    GROUP: tl.constexpr,
    SHORT: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    # Row r owns the tiles from query_start[r] // TILE_QUERIES + r on: never fewer than it needs, and a bound on the
    # grid that the host knows without the lengths. Find the last row that begins at or before this tile.
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = 0
    beyond = num_rows
    while beyond - row > 1:
        middle = (row + beyond) // 2
        before = tl.load(query_start_ptr + middle) // TILE_QUERIES + middle <= tile
        row = tl.where(before, middle, row)
        beyond = tl.where(before, beyond, middle)
    start = tl.load(query_start_ptr + row)
    num_queries = tl.load(query_start_ptr + row + 1) - start
    context_len = tl.load(context_lens_ptr + row)
    first_query = (tile - (start // TILE_QUERIES + row)) * TILE_QUERIES
    if (num_queries > SHORT) & (first_query < num_queries):
        lane = tl.arange(0, BLOCK_M)
        query = first_query + lane // GROUP
        head = kv_head * GROUP + lane % GROUP
        real = (lane < TILE_QUERIES * GROUP) & (query < num_queries)
        column = tl.arange(0, BLOCK_D)
        inside = real[:, None] & (column < HEAD_SIZE)[None, :]
        token = (start + query).to(tl.int64)
        source = token * stride_q_token + head * stride_q_head
        q = tl.load(q_ptr + source[:, None] + column[None, :], mask=inside, other=0.0)
        first_position = context_len - num_queries
        last_query = tl.minimum(first_query + TILE_QUERIES, num_queries) - 1
        accumulator, total, _ = _attend(
            q,
            tl.where(real, first_position + query, -1),
            0,
            first_position + last_query + 1,
            block_table_ptr + tl.cast(row, tl.int64) * stride_table,
            k_cache_ptr + kv_head * stride_kv_head,
            v_cache_ptr + kv_head * stride_kv_head,
            stride_block,
            stride_slot,
            scale_log2,
            BLOCK_SIZE,
            HEAD_SIZE,
            BLOCK_M,
            BLOCK_N,
            BLOCK_D,
        )
        value = accumulator / tl.where(total == 0.0, 1.0, total)[:, None]
        target = token * (tl.num_programs(1) * GROUP) + head
        tl.store(
            out_ptr + target[:, None] * HEAD_SIZE + column[None, :], value.to(out_ptr.dtype.element_ty), mask=inside
        )


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
    num_splits: int | None = None,
    block_n: int = _BLOCK_N,
    out: Tensor | None = None,
    counters: Counter[str] | None = None,
) -> Tensor:
    """See `operators.PagedAttention`. `out`, contiguous and of q's shape, is written and returned.

    `num_splits` parts of the context are computed apart in the split path; by default as many as fill the GPU.
    """
    num_tokens, num_heads, head_size = q.shape
    num_rows = context_lens.shape[0]
    block_size, kv_heads = k_cache.shape[1:3]
    group = num_heads // kv_heads
    assert num_heads == kv_heads * group
    assert k_cache.shape[3] == head_size
    assert v_cache.shape == k_cache.shape
    assert v_cache.stride() == k_cache.stride()
    assert q.stride(2) == k_cache.stride(3) == block_table.stride(1) == 1
    assert block_table.shape[0] >= num_rows
    assert query_start.shape == (num_rows + 1,)
    assert query_start.is_contiguous()
    assert context_lens.is_contiguous()
    assert {block_table.dtype, query_start.dtype, context_lens.dtype} == {torch.int32}
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    assert out.shape == q.shape
    assert out.is_contiguous()
    if num_tokens == 0 or num_rows == 0:
        return out

    split_m = max(_SPLIT_M, triton.next_power_of_2(group))
    short = split_m // group
    block_d = max(16, triton.next_power_of_2(head_size))
    scale_log2 = scale * _LOG2_E
    lengths = (block_table, query_start, context_lens)
    strides = (q.stride(0), q.stride(1), *k_cache.stride()[:3], block_table.stride(0))
    shape = {"BLOCK_SIZE": block_size, "HEAD_SIZE": head_size, "BLOCK_N": block_n, "BLOCK_D": block_d}
    if num_splits is None:
        num_splits = _splits_to_fill(num_rows * kv_heads, max_context_len, q.device)
    assert 1 <= num_splits <= _MAX_SPLITS

    max_queries = min(short, max_query_len)
    partial, lse = out, out
    if num_splits > 1:
        parts = (num_rows, max_queries, num_heads, num_splits)
        partial = torch.empty((*parts, head_size), dtype=torch.float32, device=q.device)
        lse = torch.empty(parts, dtype=torch.float32, device=q.device)
    _split_kernel[num_rows, kv_heads, num_splits](
        q,
        k_cache,
        v_cache,
        *lengths,
        out,
        partial,
        lse,
        scale_log2,
        max_queries,
        *strides,
        GROUP=group,
        SHORT=short,
        MERGED=num_splits == 1,
        BLOCK_M=split_m,
        num_warps=4,
        num_stages=3,
        **shape,
    )
    used = ["paged_attention.split"]
    if num_splits > 1:
        _merge_kernel[num_rows, max_queries, num_heads](
            partial,
            lse,
            query_start,
            context_lens,
            out,
            max_queries,
            num_splits,
            SHORT=short,
            HEAD_SIZE=head_size,
            BLOCK_N=block_n,
            BLOCK_S=_MAX_SPLITS,
            BLOCK_D=block_d,
            num_warps=4,
        )
        used.append("paged_attention.merge")
    if max_query_len > short:
        tile_m = max(_TILE_M, split_m)
        tile_queries = tile_m // group
        _tile_kernel[num_tokens // tile_queries + num_rows, kv_heads](
            q,
            k_cache,
            v_cache,
            *lengths,
            out,
            scale_log2,
            num_rows,
            *strides,
            GROUP=group,
            SHORT=short,
            TILE_QUERIES=tile_queries,
            BLOCK_M=tile_m,
            num_warps=8,
            num_stages=2,
            **shape,
        )
        used.append("paged_attention.tile")
    if counters is not None:
        counters.update(used)
    return out


def _splits_to_fill(programs: int, max_context_len: int, device: torch.device) -> int:
    """Parts that give each multiprocessor two programs, if the context is long enough to be worth splitting."""
    wanted = -(-2 * _multiprocessors(device) // programs)
    return max(1, min(wanted, max_context_len // _MIN_SPLIT_TOKENS, _MAX_SPLITS))


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
