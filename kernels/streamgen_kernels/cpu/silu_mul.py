import torch
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """See `operators.SiluMul`."""
    half = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :half], gate_up[..., half:]
    if gate_up.dtype != torch.float32:
        return torch.nn.functional.silu(gate.float()).mul_(up).to(gate_up.dtype)
    return torch.nn.functional.silu(gate).mul_(up)
