from collections import Counter

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _silu_mul_kernel(gate_up_ptr, out_ptr, stride_token, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    gate = tl.load(gate_up_ptr + token * stride_token + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + token * stride_token + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    product = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + token * WIDTH + column, product.to(out_ptr.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor, *, out: Tensor | None = None, counters: Counter[str] | None = None) -> Tensor:
    """See `operators.SiluMul`. `out`, contiguous [T, I], is written and returned."""
    num_tokens, both = gate_up.shape
    assert both % 2 == 0
    assert gate_up.stride(-1) == 1
    width = both // 2
    out = torch.empty((num_tokens, width), dtype=gate_up.dtype, device=gate_up.device) if out is None else out
    assert out.shape == (num_tokens, width)
    assert out.is_contiguous()
    if num_tokens == 0:
        return out
    grid = (num_tokens, triton.cdiv(width, _BLOCK))
    _silu_mul_kernel[grid](gate_up, out, gate_up.stride(0), WIDTH=width, BLOCK=_BLOCK, num_warps=4)
    if counters is not None:
        counters["silu_mul"] += 1
    return out
