"""What the kernel tests share: where kernels run, memory filled with NaN, and a comparison that can fail.

Without a GPU the Triton kernels run in Triton's interpreter (set in tests/conftest.py), with one they run on it.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps

import torch
from torch import Tensor

from streamgen_kernels.operators import get_operators

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# Relative error of one rounding, and some more for sums. The interpreter rounds bfloat16 towards zero.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@contextmanager
def poisoned_memory():
    """Within it, torch.empty is full of NaN (of the largest number, for integers): what a kernel forgets shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def poisoned(operator):
    @wraps(operator)
    def run(*args, **kwargs):
        with poisoned_memory():
            return operator(*args, **kwargs)

    return run


def backend(name):
    """The operators of a backend; those of Triton with poisoned memory."""
    operators = get_operators(name)
    if name != "triton":
        return operators
    names = ("rms_norm", "add_rms_norm", "rope", "silu_mul", "store_kv", "paged_attention", "sample")
    for operator in names:
        object.__setattr__(operators, operator, poisoned(getattr(operators, operator)))
    return operators


def draws(seed=0):
    return torch.Generator(device=DEVICE).manual_seed(seed)


def normal(shape, generator, dtype=torch.float32):
    return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)


def assert_close(got: Tensor, truth: Tensor, *, scale: float | None = None) -> None:
    """Every element within its dtype's tolerance of the truth (float64), relative to it and to the truth's size."""
    assert got.shape == truth.shape
    assert truth.dtype == torch.float64
    tolerance = TOLERANCE[got.dtype]
    size = truth.square().mean().sqrt() if scale is None else scale
    error = (got.double() - truth).abs()
    bound = tolerance * (truth.abs() + 0.1 * size)
    # Written so that NaN fails.
    assert bool((error <= bound).all()), f"largest error {float(error.max())}"
