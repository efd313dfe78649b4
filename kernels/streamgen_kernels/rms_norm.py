from collections import Counter

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 4096
"""Elements a program should hold at least: narrow rows (heads of q and k) share one."""


@triton.jit(do_not_specialize=["num_rows"])
def _rms_norm_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    num_rows,
    stride_token,
    stride_head,
    eps,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_WIDTH)
    inside = (row < num_rows)[:, None] & (column < WIDTH)[None, :]
    source = (row // HEADS) * stride_token + (row % HEADS) * stride_head
    x = tl.load(x_ptr + source[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    scale = tl.math.rsqrt(tl.sum(x * x, axis=1) / WIDTH + eps)
    normed = x * scale[:, None] * weight[None, :]
    tl.store(out_ptr + row[:, None] * WIDTH + column[None, :], normed.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _add_rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    total_ptr,
    stride_x,
    stride_residual,
    eps,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_WIDTH)
    inside = column < WIDTH
    x = tl.load(x_ptr + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row * stride_residual + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    # The norm is of the sum as stored, so that the fused operator equals the addition followed by the norm.
    stored = (x + residual).to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + row * WIDTH + column, stored, mask=inside)
    total = stored.to(tl.float32)
    scale = tl.math.rsqrt(tl.sum(total * total, axis=0) / WIDTH + eps)
    tl.store(out_ptr + row * WIDTH + column, (total * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None, counters: Counter[str] | None = None
) -> Tensor:
    """See `operators.RmsNorm`. `out`, contiguous and of x's shape, is written and returned."""
    width = x.shape[-1]
    assert x.dim() in {2, 3}
    assert x.stride(-1) == 1
    assert weight.shape == (width,)
    assert weight.is_contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    assert out.shape == x.shape
    assert out.is_contiguous()
    heads, stride_head = (x.shape[1], x.stride(1)) if x.dim() == 3 else (1, 0)
    num_rows = x.shape[0] * heads
    if num_rows == 0:
        return out
    block_width = triton.next_power_of_2(width)
    block_rows = max(1, _TILE // block_width) if heads > 1 else 1
    _rms_norm_kernel[triton.cdiv(num_rows, block_rows),](
        x,
        weight,
        out,
        num_rows,
        x.stride(0),
        stride_head,
        eps,
        HEADS=heads,
        WIDTH=width,
        BLOCK_ROWS=block_rows,
        BLOCK_WIDTH=block_width,
        num_warps=_num_warps(block_rows * block_width),
    )
    if counters is not None:
        counters["rms_norm"] += 1
    return out


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    *,
    out: tuple[Tensor, Tensor] | None = None,
    counters: Counter[str] | None = None,
) -> tuple[Tensor, Tensor]:
    """See `operators.AddRmsNorm`. `out` is (normed, new residual), contiguous; it may be (x, residual) themselves."""
    num_rows, width = x.shape
    assert residual.shape == x.shape
    assert residual.dtype == x.dtype
    assert x.stride(-1) == residual.stride(-1) == 1
    assert weight.shape == (width,)
    assert weight.is_contiguous()
    if out is None:
        dense = torch.contiguous_format
        out = (torch.empty_like(x, memory_format=dense), torch.empty_like(x, memory_format=dense))
    normed, total = out
    assert normed.shape == total.shape == x.shape
    assert normed.is_contiguous()
    assert total.is_contiguous()
    if num_rows == 0:
        return out
    block_width = triton.next_power_of_2(width)
    _add_rms_norm_kernel[num_rows,](
        x,
        residual,
        weight,
        normed,
        total,
        x.stride(0),
        residual.stride(0),
        eps,
        WIDTH=width,
        BLOCK_WIDTH=block_width,
        num_warps=_num_warps(block_width),
    )
    if counters is not None:
        counters["add_rms_norm"] += 1
    return out


def _num_warps(elements: int) -> int:
    return min(16, max(1, elements // 512))
