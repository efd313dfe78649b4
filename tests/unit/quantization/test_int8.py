import pytest
import torch

from streamgen.quantization.int8 import Int8Method, int8_is_fast, quantize_rows
from streamgen.quantization.integer_product import _fused, _plain, fused_is_exact


def matrix(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def method(out, width, *, heavy_tailed=False, bias=False):
    made = Int8Method(out, width, bias=bias, heavy_tailed=heavy_tailed, has_lookup=True)
    made.load(0, matrix(out, width))
    return made


def relative_error(made, x):
    exact = x.double() @ matrix(*made.weight.shape).double().t()
    return ((made.apply(x).double() - exact).norm() / exact.norm()).item()


def test_quantized_rows_are_within_half_a_step():
    x = matrix(7, 33)
    values, scale = quantize_rows(x)
    assert (values.float() * scale - x).abs().le(scale * 0.5001).all()
    assert (values.abs().amax(-1) == 127).all()


def test_a_row_of_zeros_stays_one_and_a_broken_row_stays_broken():
    made = method(5, 16)
    x = matrix(4, 16)
    x[1], x[2, 3], x[3, 0] = 0, torch.nan, torch.inf
    out = made.apply(x)
    assert torch.equal(out[0], made.apply(x[:1])[0]), "a broken row spoils no other"
    assert (out[1] == 0).all()
    assert not out[2].isfinite().any()
    assert not out[3].isfinite().any()


@pytest.mark.parametrize("heavy_tailed", [False, True])
def test_the_product_is_close_and_two_bytes_resist_outliers(heavy_tailed):
    made = method(40, 64, heavy_tailed=heavy_tailed)
    assert relative_error(made, matrix(6, 64, seed=1)) < 0.02
    spiky = matrix(6, 64, seed=1)
    spiky[:, 5] *= 300
    # Of what the other channels contribute, one byte loses much.
    quiet = spiky.clone()
    quiet[:, 5] = 0
    error = made.apply(spiky) - spiky @ (made.weight.float() * made.scale[:, None]).t()
    lost = (error.norm() / (quiet @ matrix(40, 64).t()).norm()).item()
    assert lost < 0.01 if heavy_tailed else lost > 0.1


@pytest.mark.parametrize("heavy_tailed", [False, True])
@pytest.mark.parametrize("batch", [2, 8, 33])
def test_a_row_is_the_same_bits_in_any_batch(heavy_tailed, batch):
    made = method(96, 80, heavy_tailed=heavy_tailed, bias=True)
    made.load_bias(0, matrix(1, 96)[0])
    x = matrix(batch, 80, seed=2)
    together = made.apply(x)
    for row in range(batch):
        assert torch.equal(made.apply(x[row : row + 1])[0], together[row])


def test_shards_are_quantized_as_the_whole():
    whole, parts = method(10, 16), Int8Method(10, 16, bias=False, heavy_tailed=False, has_lookup=True)
    parts.load(4, matrix(10, 16)[4:])
    parts.load(0, matrix(10, 16)[:4])
    assert torch.equal(whole.weight, parts.weight)
    assert torch.equal(whole.lookup(torch.tensor([3, 9])), parts.lookup(torch.tensor([3, 9])))
    assert whole.num_bytes == 10 * 16 + 4 * 10


@pytest.mark.parametrize("make", [_fused, _plain])
@pytest.mark.parametrize("rows, columns, batch", [(1, 1, 1), (7, 33, 3), (96, 576, 17)])
def test_products_are_exact_whatever_the_batch_holds(make, rows, columns, batch):
    # Up to 63, no processor's sums of two products saturate, so that this holds everywhere.
    generator = torch.Generator().manual_seed(columns)
    weight = torch.randint(-63, 64, (rows, columns), dtype=torch.int8, generator=generator)
    x = torch.randint(-126, 127, (batch, columns), generator=generator).float()
    x[0] *= 0.25
    product = make(weight, torch.ones(rows))(x)
    assert torch.equal(product.double(), x.round().double() @ weight.double().t())


def test_a_matrix_that_is_only_multiplied_with_is_kept_once():
    made = Int8Method(8, 16, bias=False, heavy_tailed=False)
    made.load(0, matrix(8, 16))
    made.apply(matrix(1, 16))
    assert (made.weight is None) is fused_is_exact()
    assert made.num_bytes == 8 * 16 + 4 * 8


def test_the_speed_check_answers():
    assert int8_is_fast() in (True, False)
