import pytest
import torch

from streamgen_kernels import reference
from tests.kernels.support import DEVICE, assert_close, backend, draws, normal

SHAPES = [(1, 1, 1, 2), (5, 3, 1, 64), (3, 4, 2, 80), (2, 17, 5, 128)]


def angles_of(max_position, head_size):
    frequency = 10_000.0 ** (-torch.arange(0, head_size, 2, dtype=torch.float64, device=DEVICE) / head_size)
    return torch.arange(max_position, dtype=torch.float64, device=DEVICE)[:, None] * frequency


def rotated(x, angles):
    """The rotation as a product of complex numbers: dimension i is the real part, i + D/2 the imaginary one."""
    real, imaginary = x.double().chunk(2, dim=-1)
    product = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((product.real, product.imag), dim=-1)


def check(rope, shapes=SHAPES, dtypes=(torch.float32, torch.bfloat16)):
    for num_tokens, q_heads, k_heads, head_size in shapes:
        for dtype in dtypes:
            generator = draws(head_size)
            angles = angles_of(50, head_size)
            cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1).float()
            positions = torch.randint(0, 50, (num_tokens,), generator=generator, device=DEVICE)
            qkv = normal((num_tokens, q_heads + 2 * k_heads, head_size), generator, dtype)
            before = qkv.clone()
            q, k, v = qkv.split((q_heads, k_heads, k_heads), dim=1)
            q_truth, k_truth = rotated(q, angles[positions]), rotated(k, angles[positions])
            rope(q, k, positions, cos_sin)
            assert_close(q, q_truth)
            assert_close(k, k_truth)
            assert torch.equal(v, before[:, q_heads + k_heads :])


@pytest.mark.parametrize("name", ["reference", "triton"])
def test_rotation_equals_complex_multiplication(name):
    check(backend(name).rope)


def test_each_launch_is_counted():
    operators = backend("triton")
    check(operators.rope, shapes=SHAPES[:2], dtypes=[torch.float32])
    assert operators.counters == {"rope": 2}


def interleaved(q, k, positions, cos_sin):
    for x in (q, k):
        order = torch.cat((torch.arange(0, x.shape[-1], 2), torch.arange(1, x.shape[-1], 2))).to(x.device)
        halves = x[..., order].contiguous()
        reference.rope(halves, halves[:, :0], positions, cos_sin)
        x[..., order] = halves


def sign_flipped(q, k, positions, cos_sin):
    half = cos_sin.shape[1] // 2
    reference.rope(q, k, positions, torch.cat((cos_sin[:, :half], -cos_sin[:, half:]), -1))


def heads_of_k_swapped(q, k, positions, cos_sin):
    reference.rope(q, k, positions, cos_sin)
    k.copy_(k.flip(1))


MUTANTS = {
    "sign flipped": sign_flipped,
    "neighbours paired": interleaved,
    "position off by one": lambda q, k, p, c: reference.rope(q, k, (p + 1) % 50, c),
    "position of the next token": lambda q, k, p, c: reference.rope(q, k, p.roll(1), c),
    "sines first": lambda q, k, p, c: reference.rope(q, k, p, c.roll(c.shape[1] // 2, 1)),
    "k forgotten": lambda q, k, p, c: reference.rope(q, k[:, :0], p, c),
    "last head of q forgotten": lambda q, k, p, c: reference.rope(q[:, :-1], k, p, c),
    "swapped head": heads_of_k_swapped,
    "nothing done": lambda q, k, p, c: None,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_check_catches(mutant):
    with pytest.raises(AssertionError):
        check(MUTANTS[mutant], shapes=[(3, 4, 2, 80)])


@pytest.mark.gpu
def test_rotation_of_real_sizes():
    check(backend("triton").rope, shapes=[(2048, 32, 8, 128), (300, 16, 8, 128), (300, 9, 3, 64)])
