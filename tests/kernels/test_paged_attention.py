from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import Tensor

from streamgen_kernels import reference
from tests.kernels.support import DEVICE, assert_close, backend, draws, normal


@dataclass(frozen=True)
class Case:
    """A batch: for each row its queries and its context; and the shape of heads and blocks."""

    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    heads: tuple[int, int] = (3, 1)
    head_size: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32


DECODE = Case((1, 1, 1, 1), (1, 16, 17, 33))
PADDED = Case((1, 0, 2, 1, 0), (5, 0, 33, 18, 0), heads=(4, 2), head_size=80, block_size=4)
MIXED = Case((1, 21, 0, 3, 40), (35, 33, 0, 9, 40), heads=(4, 2), head_size=64, block_size=8)
# No bfloat16 here: the interpreter multiplies its bits as integers. The GPU tests have it.
CASES = {
    "decode": DECODE,
    "with padding rows": PADDED,
    "mixed": MIXED,
    "one head each": Case((18, 1), (18, 7), heads=(2, 2), head_size=128),
    "one head for eight": Case((1, 3), (20, 35), heads=(8, 1), block_size=32),
    "half precision": replace(MIXED, dtype=torch.float16),
}


@dataclass(frozen=True)
class Batch:
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    query_start: Tensor
    context_lens: Tensor
    scale: float
    max_query_len: int
    max_context_len: int

    def attend(self, paged_attention):
        lengths = (self.block_table, self.query_start, self.context_lens)
        maxima = {"max_query_len": self.max_query_len, "max_context_len": self.max_context_len}
        return paged_attention(self.q, self.k_cache, self.v_cache, *lengths, scale=self.scale, **maxima)


def int32(values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def make_batch(case, seed=0):
    """Blocks in random order; NaN in every slot that holds no token, and in block 0, which is padding's."""
    generator = draws(seed)
    q_heads, kv_heads = case.heads
    blocks = [-(-context // case.block_size) for context in case.context_lens]
    num_blocks = sum(blocks) + 3
    order = (torch.randperm(num_blocks - 1, generator=generator, device=DEVICE) + 1).tolist()
    shape = (num_blocks, case.block_size, kv_heads, case.head_size)
    k_cache, v_cache = (torch.full(shape, torch.nan, dtype=case.dtype, device=DEVICE) for _ in range(2))
    block_table = torch.zeros((len(blocks), max(blocks) + 1), dtype=torch.int32, device=DEVICE)
    for row, context in enumerate(case.context_lens):
        block_table[row, : blocks[row]] = int32([order.pop() for _ in range(blocks[row])])
        for position in range(context):
            slot = int(block_table[row, position // case.block_size]), position % case.block_size
            k_cache[slot] = normal(shape[2:], generator, case.dtype)
            v_cache[slot] = normal(shape[2:], generator, case.dtype)
    num_tokens = sum(case.query_lens)
    qkv = normal((num_tokens, q_heads + 2 * kv_heads, case.head_size), generator, case.dtype)
    starts = torch.tensor((0, *case.query_lens)).cumsum(0)
    return Batch(
        qkv[:, :q_heads],
        k_cache,
        v_cache,
        block_table,
        int32(starts.tolist()),
        int32(case.context_lens),
        case.head_size**-0.5,
        max(case.query_lens),
        max(case.context_lens),
    )


def truth_of(batch):
    """Token by token and head by head: its keys gathered one after the other, and a softmax in float64."""
    out = torch.full(batch.q.shape, torch.nan, dtype=torch.float64, device=DEVICE)
    block_size, kv_heads = batch.k_cache.shape[1:3]
    group = batch.q.shape[1] // kv_heads
    starts = batch.query_start.tolist()
    for row, context in enumerate(batch.context_lens.tolist()):
        for token in range(starts[row], starts[row + 1]):
            visible = context - (starts[row + 1] - 1 - token)
            slots = [(int(batch.block_table[row, n // block_size]), n % block_size) for n in range(visible)]
            for head in range(batch.q.shape[1]):
                keys = torch.stack([batch.k_cache[slot][head // group] for slot in slots]).double()
                values = torch.stack([batch.v_cache[slot][head // group] for slot in slots]).double()
                weights = torch.softmax(keys @ batch.q[token, head].double() * batch.scale, dim=0)
                out[token, head] = weights @ values
    return out


def check(paged_attention, case):
    batch = make_batch(case)
    got = batch.attend(paged_attention)
    assert got.dtype == case.dtype
    assert_close(got, truth_of(batch), scale=1.0)


@pytest.mark.parametrize("case", CASES)
def test_reference_equals_dense_attention_in_float64(case):
    check(reference.paged_attention, CASES[case])


@pytest.mark.parametrize("num_splits", [None, 1, 3])
@pytest.mark.parametrize("case", CASES)
def test_kernels_equal_dense_attention_in_float64(case, num_splits):
    operators = backend("triton")
    check(partial(operators.paged_attention, num_splits=num_splits, block_n=16), CASES[case])
    assert operators.counters["paged_attention.split"] == 1
    assert operators.counters["paged_attention.merge"] == (num_splits == 3)
    q_heads, kv_heads = CASES[case].heads
    many = any(n * q_heads // kv_heads > 16 for n in CASES[case].query_lens)
    assert operators.counters["paged_attention.tile"] == many


def test_more_splits_than_tokens():
    operators = backend("triton")
    check(partial(operators.paged_attention, num_splits=7, block_n=16), DECODE)


def test_maxima_are_bounds_and_need_not_be_exact():
    operators = backend("triton")
    batch = replace(make_batch(MIXED), max_query_len=64, max_context_len=4096)
    assert_close(batch.attend(operators.paged_attention), truth_of(batch), scale=1.0)


@pytest.mark.parametrize("num_splits", [1, 3])
def test_a_row_alone_gives_the_very_bits_it_gives_in_a_batch(num_splits):
    attend = partial(backend("triton").paged_attention, num_splits=num_splits, block_n=16)
    batch = make_batch(MIXED)
    together = batch.attend(attend)
    starts = batch.query_start.tolist()
    for row, query_len in enumerate(MIXED.query_lens):
        if query_len:
            alone = replace(
                batch,
                q=batch.q[starts[row] : starts[row + 1]],
                block_table=batch.block_table[row : row + 1],
                query_start=int32([0, query_len]),
                context_lens=batch.context_lens[row : row + 1],
                max_query_len=query_len,
            )
            assert torch.equal(alone.attend(attend), together[starts[row] : starts[row + 1]])


def test_nothing_is_written_where_no_row_has_a_query():
    batch = make_batch(PADDED)
    tail = torch.cat((batch.q, batch.q[:2]))
    out = torch.full(tail.shape, 7.0, device=DEVICE)
    replace(batch, q=tail).attend(partial(backend("triton").paged_attention, out=out))
    assert_close(out[:-2], truth_of(batch), scale=1.0)
    assert (out[-2:] == 7).all()


def changed(**changes):
    """The reference on a batch in which some fields are made wrong."""

    def paged_attention(q, k_cache, v_cache, block_table, query_start, context_lens, **rest):
        fields = {
            "q": q,
            "k_cache": k_cache,
            "v_cache": v_cache,
            "block_table": block_table,
            "query_start": query_start,
            "context_lens": context_lens,
            **rest,
        }
        fields |= {name: change(fields[name]) for name, change in changes.items()}
        return reference.paged_attention(**fields)

    return paged_attention


def one_group_off(q, *rest, **maxima):
    """Query head h reads key-value head h mod Hk rather than h // group."""
    kv_heads = rest[0].shape[2]
    order = torch.arange(q.shape[1], device=q.device).view(-1, kv_heads).T.flatten()
    out = torch.empty_like(q)
    out[:, order] = reference.paged_attention(q[:, order], *rest, **maxima)
    return out


def acausal(q, k_cache, v_cache, block_table, query_start, context_lens, **maxima):
    """Every query sees its row's whole context: each is made the last of a row of its own."""
    lens = query_start.diff()
    every = torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device)
    block_table, context_lens = (x.repeat_interleave(lens, dim=0) for x in (block_table, context_lens))
    return reference.paged_attention(q, k_cache, v_cache, block_table, every, context_lens, **maxima)


def halves_merged(q, k_cache, v_cache, block_table, query_start, context_lens, **maxima):
    """The two parts of a split context averaged, without renormalizing by their sums of weights."""
    block_size = k_cache.shape[1]
    first = torch.where(context_lens > block_size, block_size, context_lens)
    early = reference.paged_attention(q, k_cache, v_cache, block_table, query_start, first, **maxima)
    rest = (block_table[:, 1:], query_start, torch.where(context_lens > block_size, context_lens - block_size, 1))
    late = reference.paged_attention(q, k_cache.nan_to_num(), v_cache.nan_to_num(), *rest, **maxima)
    return torch.where((context_lens > block_size)[:, None, None], (early + late) / 2, early)


MUTANTS = {
    "context one short": (DECODE, changed(context_lens=lambda n: (n - 1).clamp_min(1))),
    "context one long": (DECODE, changed(context_lens=lambda n: n + 1, max_context_len=lambda n: n + 1)),
    "no causal mask": (MIXED, acausal),
    "heads swapped": (MIXED, changed(q=lambda q: q.flip(1))),
    "key heads swapped": (MIXED, changed(k_cache=lambda k: k.flip(2))),
    "groups interleaved": (MIXED, one_group_off),
    "no scale": (DECODE, changed(scale=lambda _: 1.0)),
    "blocks shifted": (DECODE, changed(block_table=lambda table: table.roll(1, 1), k_cache=torch.nan_to_num)),
    "rows swapped": (DECODE, changed(block_table=lambda table: table.flip(0), v_cache=torch.nan_to_num)),
    "keys for values": (DECODE, changed(v_cache=lambda v: v.roll(1, 1).nan_to_num())),
    "parts merged without weights": (DECODE, halves_merged),
    "left unwritten": (DECODE, lambda q, *_, **__: torch.full_like(q, torch.nan)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_check_catches(mutant):
    case, paged_attention = MUTANTS[mutant]
    with pytest.raises(AssertionError):
        check(paged_attention, case)


@pytest.mark.gpu
@pytest.mark.parametrize("head_size", [64, 80, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_real_sizes_equal_the_reference(head_size, dtype):
    operators = backend("triton")
    shape = {"heads": (16, 2), "head_size": head_size, "dtype": dtype}
    decode = Case((1,) * 24, tuple(37 * n + 1 for n in range(24)), **shape)
    mixed = Case((1, 300, 1, 2, 129, 0, 257), (1025, 700, 3, 515, 129, 0, 300), **shape)
    for case in (decode, mixed):
        batch = make_batch(case)
        wide = replace(batch, q=batch.q.float(), k_cache=batch.k_cache.float(), v_cache=batch.v_cache.float())
        truth = wide.attend(reference.paged_attention).double()
        # Weights are rounded to bfloat16 too: the error is relative to the largest values, not to their mean.
        scale = 1.0 if dtype == torch.float32 else 8.0
        assert_close(batch.attend(operators.paged_attention), truth, scale=scale)
    assert operators.counters["paged_attention.merge"] > 0
    assert operators.counters["paged_attention.tile"] == 1
