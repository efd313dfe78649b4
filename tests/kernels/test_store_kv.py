import pytest
import torch

from streamgen_kernels import reference
from tests.kernels.support import DEVICE, backend, draws, normal

BLOCKS, BLOCK_SIZE = 6, 4


def check(store_kv, shapes=((5, 1, 64), (3, 2, 80), (7, 3, 5)), dtypes=(torch.float32, torch.float16)):
    for num_tokens, heads, head_size in shapes:
        for dtype in dtypes:
            generator = draws(num_tokens)
            qkv = normal((num_tokens, 3 * heads, head_size), generator, dtype)
            _, k, v = qkv.split(heads, dim=1)
            shape = (BLOCKS, BLOCK_SIZE, heads, head_size)
            k_cache, v_cache = normal(shape, generator, dtype), normal(shape, generator, dtype)
            slots = torch.randperm(BLOCKS * BLOCK_SIZE, generator=generator, device=DEVICE)[:num_tokens]
            slots[1] = -1
            # Slots as one axis, written token by token: what the blocked layout has to agree with.
            k_truth, v_truth = k_cache.clone().flatten(0, 1), v_cache.clone().flatten(0, 1)
            for token in range(num_tokens):
                if token != 1:
                    k_truth[slots[token]], v_truth[slots[token]] = k[token], v[token]
            store_kv(k, v, k_cache, v_cache, slots)
            assert torch.equal(k_cache.flatten(0, 1), k_truth)
            assert torch.equal(v_cache.flatten(0, 1), v_truth)


@pytest.mark.parametrize("name", ["reference", "triton"])
def test_exactly_the_mapped_slots_are_written(name):
    check(backend(name).store_kv)


def test_each_launch_is_counted():
    operators = backend("triton")
    check(operators.store_kv, shapes=[(5, 1, 64)], dtypes=[torch.float32])
    assert operators.counters == {"store_kv": 1}


MUTANTS = {
    "k and v swapped": lambda k, v, kc, vc, s: reference.store_kv(v, k, kc, vc, s),
    "caches swapped": lambda k, v, kc, vc, s: reference.store_kv(k, v, vc, kc, s),
    "slot off by one": lambda k, v, kc, vc, s: reference.store_kv(k, v, kc, vc, (s + 1) % (BLOCKS * BLOCK_SIZE)),
    "padding written": lambda k, v, kc, vc, s: reference.store_kv(k, v, kc, vc, s % (BLOCKS * BLOCK_SIZE)),
    "last token skipped": lambda k, v, kc, vc, s: reference.store_kv(k[:-1], v[:-1], kc, vc, s[:-1]),
    "heads swapped": lambda k, v, kc, vc, s: reference.store_kv(k.flip(1), v, kc, vc, s),
    "nothing written": lambda k, v, kc, vc, s: None,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_check_catches(mutant):
    with pytest.raises(AssertionError):
        check(MUTANTS[mutant], shapes=[(3, 2, 80)])
