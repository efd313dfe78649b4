import torch
from torch import Tensor


def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """See `operators.Rope`. Where k follows q in memory, as in a merged projection, both are rotated at once."""
    tokens, q_heads, size = q.shape
    cos, sin = cos_sin.index_select(0, positions).view(tokens, 1, 2, size // 2).unbind(2)
    if q.stride() == k.stride() and k.data_ptr() == q.data_ptr() + q_heads * size * q.element_size():
        _rotate(q.as_strided((tokens, q_heads + k.shape[1], size), q.stride()), cos, sin)
    else:
        _rotate(q, cos, sin)
        _rotate(k, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    if x.dtype != torch.float32:
        wide_first, wide_second = first.float(), second.float()
        first.copy_(wide_first * cos - wide_second * sin)
        second.copy_(wide_second * cos + wide_first * sin)
        return
    turned = first * sin
    first.mul_(cos).sub_(second * sin)
    second.mul_(cos).add_(turned)
