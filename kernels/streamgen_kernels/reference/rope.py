import torch
from torch import Tensor


def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """See `operators.Rope`."""
    cos, sin = cos_sin[positions].to(torch.float32)[:, None].chunk(2, dim=-1)
    for x in (q, k):
        first, second = x.to(torch.float32).chunk(2, dim=-1)
        x.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))
