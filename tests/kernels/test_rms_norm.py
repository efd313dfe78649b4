import pytest
import torch

from streamgen_kernels import reference
from tests.kernels.support import DEVICE, assert_close, backend, draws, normal

# Large enough to show in randn's rows, so that a kernel without it fails.
EPS = 0.03
SHAPES = [(1, 1), (3, 65), (2, 576), (4, 3, 64), (3, 5, 80), (2, 1, 128)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def truth_of(x, weight):
    x = x.double()
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight.double(), EPS)


def check_rms_norm(rms_norm, shapes=SHAPES, dtypes=DTYPES):
    for shape in shapes:
        for dtype in dtypes:
            generator = draws(sum(shape))
            # A slice of a wider row, as q and k are slices of the projection's output.
            *outer, width = shape
            wide = normal((outer[0], (outer[1] if len(outer) > 1 else 1) * width + 7), generator, dtype)
            x = wide[:, 3:-4].unflatten(-1, shape[1:]) if len(shape) > 2 else wide[:, 3:-4]
            weight = normal((width,), generator, dtype)
            got = rms_norm(x, weight, EPS)
            assert got.dtype == dtype
            assert got.is_contiguous()
            assert_close(got, truth_of(x, weight))


def check_add_rms_norm(add_rms_norm, shapes=((1, 1), (3, 65), (2, 576)), dtypes=DTYPES):
    for shape in shapes:
        for dtype in dtypes:
            generator = draws(sum(shape))
            x, residual = normal(shape, generator, dtype), normal(shape, generator, dtype)
            weight = normal(shape[-1:], generator, dtype)
            normed, total = add_rms_norm(x, residual, weight, EPS)
            assert normed.dtype == total.dtype == dtype
            assert_close(total, x.double() + residual.double())
            assert_close(normed, truth_of(total, weight))


@pytest.mark.parametrize("name", ["reference", "triton"])
def test_norm_equals_torch_in_float64(name):
    check_rms_norm(backend(name).rms_norm)


@pytest.mark.parametrize("name", ["reference", "triton"])
def test_sum_and_norm_equal_torch_in_float64(name):
    check_add_rms_norm(backend(name).add_rms_norm)


def test_sum_and_norm_may_overwrite_their_inputs():
    operators = backend("triton")
    generator = draws()
    x, residual, weight = normal((3, 65), generator), normal((3, 65), generator), normal((65,), generator)
    normed, total = reference.add_rms_norm(x, residual, weight, EPS)
    operators.add_rms_norm(x, residual, weight, EPS, out=(x, residual))
    assert_close(x, normed.double())
    assert_close(residual, total.double())


def test_fused_norm_is_the_norm_of_the_stored_sum():
    operators = backend("triton")
    generator = draws()
    x, residual = normal((4, 576), generator, torch.float16), normal((4, 576), generator, torch.float16)
    weight = normal((576,), generator, torch.float16)
    normed, total = operators.add_rms_norm(x, residual, weight, EPS)
    torch.testing.assert_close(normed, operators.rms_norm(total, weight, EPS), rtol=1e-3, atol=1e-3)


def test_no_rows_are_no_launch():
    operators = backend("triton")
    assert operators.rms_norm(torch.empty((0, 8), device=DEVICE), torch.ones(8, device=DEVICE), EPS).shape == (0, 8)
    assert not operators.counters


def test_each_launch_is_counted():
    operators = backend("triton")
    x = torch.ones((2, 8), device=DEVICE)
    operators.rms_norm(x, x[0], EPS)
    operators.add_rms_norm(x, x, x[0], EPS)
    operators.add_rms_norm(x, x, x[0], EPS)
    assert operators.counters == {"rms_norm": 1, "add_rms_norm": 2}


def without_last_column(x, weight, eps):
    return reference.rms_norm(torch.cat((x[..., :-1], 0 * x[..., -1:]), -1), weight, eps)


def eps_outside_the_root(x, weight, eps):
    wide = x.float()
    return (wide / (wide.square().mean(-1, keepdim=True).sqrt() + eps) * weight.float()).to(x.dtype)


NORM_MUTANTS = {
    "no eps": lambda x, weight, eps: reference.rms_norm(x, weight, 0.0),
    "eps outside of the root": eps_outside_the_root,
    "sum for mean": lambda x, weight, eps: reference.rms_norm(x, weight, eps) / x.shape[-1] ** 0.5,
    "mean subtracted": lambda x, weight, eps: reference.rms_norm(x - x.mean(-1, keepdim=True), weight, eps),
    "weights shifted": lambda x, weight, eps: reference.rms_norm(x, weight.roll(1), eps),
    "last column dropped": without_last_column,
    "rows swapped": lambda x, weight, eps: reference.rms_norm(x.flip(0), weight, eps),
    "left unwritten": lambda x, weight, eps: torch.full_like(x, torch.nan),
}


@pytest.mark.parametrize("mutant", NORM_MUTANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_check_catches(mutant, dtype):
    with pytest.raises(AssertionError):
        check_rms_norm(NORM_MUTANTS[mutant], shapes=[(3, 65)], dtypes=[dtype])


SUM_MUTANTS = {
    "residual not returned": lambda x, r, w, e: (reference.add_rms_norm(x, r, w, e)[0], x),
    "norm of x alone": lambda x, r, w, e: (reference.rms_norm(x, w, e), x + r),
    "difference": lambda x, r, w, e: reference.add_rms_norm(x, -r, w, e),
    "swapped results": lambda x, r, w, e: reference.add_rms_norm(x, r, w, e)[::-1],
}


@pytest.mark.parametrize("mutant", SUM_MUTANTS)
def test_sum_and_norm_check_catches(mutant):
    with pytest.raises(AssertionError):
        check_add_rms_norm(SUM_MUTANTS[mutant], shapes=[(3, 65)])


@pytest.mark.gpu
def test_norm_of_real_sizes():
    operators = backend("triton")
    check_rms_norm(operators.rms_norm, shapes=[(2048, 4096), (257, 8192), (512, 32, 128)])
    check_add_rms_norm(operators.add_rms_norm, shapes=[(2048, 4096), (257, 1024)])
