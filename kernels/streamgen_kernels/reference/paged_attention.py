import torch
from torch import Tensor


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
) -> Tensor:
    """See `operators.PagedAttention`. One row at a time, with the whole matrix of scores."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    group = q.shape[1] // k_cache.shape[2]
    starts = query_start.tolist()
    for row, context_len in enumerate(context_lens.tolist()):
        start, end = starts[row], starts[row + 1]
        if start == end:
            continue
        assert end - start <= min(max_query_len, context_len)
        assert context_len <= max_context_len
        keys, values = (_gather(cache, block_table[row], context_len, group) for cache in (k_cache, v_cache))
        scores = torch.einsum("qhd,nhd->hqn", q[start:end].to(torch.float32), keys) * scale
        positions = torch.arange(context_len - (end - start), context_len, device=q.device)
        future = torch.arange(context_len, device=q.device) > positions[:, None]
        weights = torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1)
        out[start:end] = torch.einsum("hqn,nhd->qhd", weights, values).to(q.dtype)
    return out


def _gather(cache: Tensor, blocks: Tensor, context_len: int, group: int) -> Tensor:
    """A row's keys or values in order, one copy a query head: float32 [context_len, Hq, D]."""
    num_blocks = -(-context_len // cache.shape[1])
    tokens = cache[blocks[:num_blocks].long()].flatten(0, 1)[:context_len]
    return tokens.to(torch.float32).repeat_interleave(group, dim=1)
