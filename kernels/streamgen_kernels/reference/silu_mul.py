import torch
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """See `operators.SiluMul`."""
    gate, up = gate_up.to(torch.float32).chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)
