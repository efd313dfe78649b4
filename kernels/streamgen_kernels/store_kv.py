from collections import Counter

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _store_kv_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slot_mapping_ptr,
    stride_k,
    stride_v,
    stride_block,
    stride_slot,
    BLOCK_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    if slot >= 0:
        column = tl.arange(0, BLOCK_WIDTH)
        inside = column < WIDTH
        target = (slot // BLOCK_SIZE) * stride_block + (slot % BLOCK_SIZE) * stride_slot + column
        k = tl.load(k_ptr + token * stride_k + column, mask=inside)
        v = tl.load(v_ptr + token * stride_v + column, mask=inside)
        tl.store(k_cache_ptr + target, k.to(k_cache_ptr.dtype.element_ty), mask=inside)
        tl.store(v_cache_ptr + target, v.to(v_cache_ptr.dtype.element_ty), mask=inside)


def store_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    counters: Counter[str] | None = None,
) -> None:
    """See `operators.StoreKv`. The heads of one token lie together, in the inputs as in the caches."""
    num_tokens, heads, head_size = k.shape
    assert v.shape == k.shape
    assert k.stride()[1:] == v.stride()[1:] == (head_size, 1)
    assert k_cache.shape[2:] == (heads, head_size)
    assert v_cache.shape == k_cache.shape
    assert v_cache.stride() == k_cache.stride()
    assert k_cache.stride()[2:] == (head_size, 1)
    assert slot_mapping.shape == (num_tokens,)
    assert slot_mapping.is_contiguous()
    if num_tokens == 0:
        return
    width = heads * head_size
    _store_kv_kernel[num_tokens,](
        k,
        v,
        k_cache,
        v_cache,
        slot_mapping,
        k.stride(0),
        v.stride(0),
        k_cache.stride(0),
        k_cache.stride(1),
        BLOCK_SIZE=k_cache.shape[1],
        WIDTH=width,
        BLOCK_WIDTH=triton.next_power_of_2(width),
        num_warps=4,
    )
    if counters is not None:
        counters["store_kv"] += 1
