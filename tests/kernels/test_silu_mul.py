import pytest
import torch

from streamgen_kernels import reference
from tests.kernels.support import assert_close, backend, draws, normal


def check(silu_mul, shapes=((1, 1), (3, 77), (2, 1500)), dtypes=(torch.float32, torch.float16, torch.bfloat16)):
    for num_tokens, width in shapes:
        for dtype in dtypes:
            gate_up = normal((num_tokens, 2 * width + 5), draws(width), dtype)[:, 5:]
            gate, up = gate_up.double().chunk(2, dim=-1)
            got = silu_mul(gate_up)
            assert got.dtype == dtype
            assert_close(got, torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("name", ["reference", "triton"])
def test_product_equals_torch_in_float64(name):
    check(backend(name).silu_mul)


def test_each_launch_is_counted():
    operators = backend("triton")
    check(operators.silu_mul, shapes=[(2, 5)], dtypes=[torch.float32])
    assert operators.counters == {"silu_mul": 1}


MUTANTS = {
    "gate and up swapped": lambda x: reference.silu_mul(x.roll(x.shape[1] // 2, 1)),
    "no up": lambda x: torch.nn.functional.silu(x.chunk(2, -1)[0]),
    "sigmoid for SiLU": lambda x: torch.sigmoid(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "GELU for SiLU": lambda x: torch.nn.functional.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "one column off": lambda x: reference.silu_mul(x.roll(1, 1)),
    "left unwritten": lambda x: reference.silu_mul(x) * torch.nan,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_check_catches(mutant):
    with pytest.raises(AssertionError):
        check(MUTANTS[mutant], shapes=[(3, 77)])


@pytest.mark.gpu
def test_product_of_real_sizes():
    check(backend("triton").silu_mul, shapes=[(2048, 14336), (257, 3072)])
