from collections import Counter

import triton
import triton.language as tl
from torch import Tensor

_TILE_HEADS = 16
"""Heads a program rotates: they share one load of cosines and sines."""


@triton.jit
def _rotate(
    x_ptr,
    cos,
    sin,
    token,
    head,
    stride_token,
    stride_head,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    column = tl.arange(0, BLOCK_HALF)
    inside = (head < HEADS)[:, None] & (column < HALF)[None, :]
    at = x_ptr + token * stride_token + head[:, None] * stride_head + column[None, :]
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, (first * cos - second * sin).to(x_ptr.dtype.element_ty), mask=inside)
    tl.store(at + HALF, (second * cos + first * sin).to(x_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _rope_kernel(
    q_ptr,
    k_ptr,
    positions_ptr,
    cos_sin_ptr,
    stride_q_token,
    stride_q_head,
    stride_k_token,
    stride_k_head,
    stride_cos_sin,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    TILE_HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    q_tiles = tl.cdiv(Q_HEADS, TILE_HEADS)
    column = tl.arange(0, BLOCK_HALF)
    angles = cos_sin_ptr + tl.load(positions_ptr + token) * stride_cos_sin + column
    cos = tl.load(angles, mask=column < HALF, other=0.0)[None, :]
    sin = tl.load(angles + HALF, mask=column < HALF, other=0.0)[None, :]
    lane = tl.arange(0, TILE_HEADS)
    if tile < q_tiles:
        head = tile * TILE_HEADS + lane
        _rotate(q_ptr, cos, sin, token, head, stride_q_token, stride_q_head, Q_HEADS, HALF, BLOCK_HALF)
    else:
        head = (tile - q_tiles) * TILE_HEADS + lane
        _rotate(k_ptr, cos, sin, token, head, stride_k_token, stride_k_head, K_HEADS, HALF, BLOCK_HALF)


def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, *, counters: Counter[str] | None = None) -> None:
    """See `operators.Rope`."""
    num_tokens, q_heads, head_size = q.shape
    k_heads = k.shape[1]
    assert k.shape == (num_tokens, k_heads, head_size)
    assert head_size % 2 == 0
    assert positions.shape == (num_tokens,)
    assert positions.is_contiguous()
    assert cos_sin.shape[1] == head_size
    assert q.stride(-1) == k.stride(-1) == cos_sin.stride(-1) == 1
    if num_tokens == 0:
        return
    tiles = triton.cdiv(q_heads, _TILE_HEADS) + triton.cdiv(k_heads, _TILE_HEADS)
    _rope_kernel[num_tokens, tiles](
        q,
        k,
        positions,
        cos_sin,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        cos_sin.stride(0),
        Q_HEADS=q_heads,
        K_HEADS=k_heads,
        HALF=head_size // 2,
        BLOCK_HALF=triton.next_power_of_2(head_size // 2),
        TILE_HEADS=_TILE_HEADS,
        num_warps=2,
    )
    if counters is not None:
        counters["rope"] += 1
