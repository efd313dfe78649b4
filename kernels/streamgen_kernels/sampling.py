"""Choosing a token in two kernels, neither of which computes a softmax over the vocabulary.

`_scan_kernel` (a program a chunk of a row) finds the chunk's best token: the largest logit for a greedy row, the
largest logit + Gumbel variate for one that samples from everything. `_choose_kernel` (a program a row) merges the
chunks; for a row with top-k, top-p or min-p it first finds the exact bound of the kept set, by descending four bits
at a time through the logits' order-preserving integer keys, counting tokens (top-k) or mass (top-p).
"""

from collections import Counter

import torch
import triton
import triton.language as tl
from torch import Tensor

from streamgen_kernels.operators import GREEDY_TEMPERATURE
from streamgen_kernels.random import LANES, PURPOSE_SAMPLE, STRIPE, gumbel, lane_words
from streamgen_kernels.reference import sampling as rules

_GREEDY = tl.constexpr(GREEDY_TEMPERATURE)
_MASS_UNITS = tl.constexpr(float(rules.MASS_UNITS))
_ROUNDED_DOWN = tl.constexpr(rules.ROUNDED_DOWN)
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)
_CHUNK = 8192
_TILE = 1024
_NOTHING = tl.constexpr(2**31 - 1)
"""An id above all ids, so that it loses every comparison for the lowest."""


@triton.jit
def _load(row_ptr, token, temperature, VOCAB: tl.constexpr):
    """Logits of the tokens, the same divided by the temperature, and unsigned integers in the order of the latter.

    What is banned or beyond the end of the vocabulary is at -inf.
    """
    logit = tl.load(row_ptr + token, mask=token < VOCAB, other=float("-inf"))
    scaled = tl.minimum(tl.maximum(tl.math.div_rn(logit, temperature), -_LARGEST), _LARGEST)
    scaled = tl.where(logit == float("-inf"), logit, scaled)
    scaled = tl.where(scaled == 0.0, 0.0, scaled)  # -0.0 equals 0.0, but its bits do not
    bits = scaled.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)
    return logit, scaled, key


@triton.jit
def _mass(scaled, heaviest):
    return (tl.exp(scaled - heaviest) * _MASS_UNITS).to(tl.int64)


@triton.jit
def _better(score, token, best, best_token):
    wins = score > best
    return tl.where(wins, score, best), tl.where(wins, token, best_token)


@triton.jit
def _first_largest(best, best_token):
    largest = tl.max(best, axis=0)
    return largest, tl.min(tl.where(best == largest, best_token, _NOTHING), axis=0)


@triton.jit
def _scan_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    sibling_ptr,
    position_ptr,
    best_ptr,
    token_ptr,
    stride_row,
    GREEDY_ONLY: tl.constexpr,
    VOCAB: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    row_ptr = logits_ptr + row.to(tl.int64) * stride_row
    temperature = tl.load(temperature_ptr + row)
    divisor = tl.where(temperature < _GREEDY, 1.0, temperature)
    filtered = _is_filtered(row, top_k_ptr, top_p_ptr, min_p_ptr, VOCAB)
    noisy = (temperature >= _GREEDY) & (not filtered)
    seed = tl.load(seed_ptr + row)
    sibling = tl.load(sibling_ptr + row)
    position = tl.load(position_ptr + row)

    lane = tl.arange(0, LANES)
    best = tl.full([LANES], float("-inf"), tl.float32)
    best_token = tl.full([LANES], _NOTHING, tl.int32)
    broken = tl.zeros([LANES], tl.int32)
    for first in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, VOCAB), STRIPE):
        noise0 = tl.zeros([LANES], tl.float32)
        noise1 = noise0
        noise2 = noise0
        noise3 = noise0
        if not GREEDY_ONLY:  # noqa: SIM102 -- the one is decided at compile time, the other by the row
            if noisy:
                counter = first // STRIPE * LANES + lane
                word0, word1, word2, word3 = lane_words(seed, sibling, position, PURPOSE_SAMPLE, counter)
                noise0 = gumbel(word0)
                noise1 = gumbel(word1)
                noise2 = gumbel(word2)
                noise3 = gumbel(word3)
        for word in tl.static_range(4):
            token = first + word * LANES + lane
            logit, scaled, _ = _load(row_ptr, token, divisor, VOCAB)
            broken |= ((logit != logit) | (logit == float("inf"))).to(tl.int32)  # noqa: PLR0124 -- NaN alone differs from itself
            noise = noise0 if word == 0 else (noise1 if word == 1 else (noise2 if word == 2 else noise3))
            best, best_token = _better(scaled + noise, token, best, best_token)
    best, best_token = _first_largest(best, best_token)
    at = row * tl.num_programs(1) + chunk
    tl.store(best_ptr + at, best)
    tl.store(token_ptr + at, tl.where(tl.max(broken, axis=0) > 0, -1, best_token))


@triton.jit
def _is_filtered(row, top_k_ptr, top_p_ptr, min_p_ptr, VOCAB: tl.constexpr):
    top_k = tl.load(top_k_ptr + row)
    return ((top_k > 0) & (top_k < VOCAB)) | (tl.load(top_p_ptr + row) < 1.0) | (tl.load(min_p_ptr + row) > 0.0)


@triton.jit
def _choose_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    sibling_ptr,
    position_ptr,
    best_ptr,
    token_ptr,
    out_ptr,
    stride_row,
    GREEDY_ONLY: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0)
    chunk = tl.arange(0, BLOCK_CHUNKS)
    present = chunk < NUM_CHUNKS
    best = tl.load(best_ptr + row * NUM_CHUNKS + chunk, mask=present, other=float("-inf"))
    token = tl.load(token_ptr + row * NUM_CHUNKS + chunk, mask=present, other=_NOTHING)
    broken = tl.min(token, axis=0) < 0
    heaviest, chosen = _first_largest(best, token)
    broken = broken | (heaviest == float("-inf"))
    if not GREEDY_ONLY:
        temperature = tl.load(temperature_ptr + row)
        filtered = _is_filtered(row, top_k_ptr, top_p_ptr, min_p_ptr, VOCAB)
        if (temperature >= _GREEDY) & filtered & (not broken):
            chosen = _draw_filtered(
                logits_ptr + row.to(tl.int64) * stride_row,
                heaviest,
                temperature,
                tl.load(top_k_ptr + row),
                tl.load(top_p_ptr + row),
                tl.load(min_p_ptr + row),
                tl.load(seed_ptr + row),
                tl.load(sibling_ptr + row),
                tl.load(position_ptr + row),
                VOCAB,
                TILE,
            )
    tl.store(out_ptr + row, tl.where(broken, -1, chosen).to(tl.int64))


@triton.jit
def _draw_filtered(
    row_ptr,
    heaviest,
    temperature,
    top_k,
    top_p,
    min_p,
    seed,
    sibling,
    position,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
):
    # A bound is a key and an id: what has a larger key, or that key and an id up to that one, stays.
    k_key = tl.full([], 0, tl.uint32)
    k_token = tl.full([], _NOTHING, tl.int32)
    if (top_k > 0) & (top_k < VOCAB):
        k_key, k_token = _bound(row_ptr, heaviest, temperature, top_k.to(tl.int64), False, VOCAB, TILE)
    p_key = tl.full([], 0, tl.uint32)
    p_token = tl.full([], _NOTHING, tl.int32)
    if top_p < 1.0:
        total = tl.zeros([TILE], tl.int64)
        for first in range(0, VOCAB, TILE):
            token = first + tl.arange(0, TILE)
            _, scaled, key = _load(row_ptr, token, temperature, VOCAB)
            total += tl.where(_within(key, token, k_key, k_token), _mass(scaled, heaviest), 0)
        wanted = _ceil(top_p.to(tl.float64) * _ROUNDED_DOWN * tl.sum(total, axis=0).to(tl.float64))
        p_key, p_token = _bound(row_ptr, heaviest, temperature, tl.maximum(wanted, 1), True, VOCAB, TILE)

    lane = tl.arange(0, LANES)
    best = tl.full([LANES], float("-inf"), tl.float32)
    best_token = tl.full([LANES], _NOTHING, tl.int32)
    for first in range(0, VOCAB, STRIPE):
        counter = first // STRIPE * LANES + lane
        word0, word1, word2, word3 = lane_words(seed, sibling, position, PURPOSE_SAMPLE, counter)
        for index in tl.static_range(4):
            token = first + index * LANES + lane
            _, scaled, key = _load(row_ptr, token, temperature, VOCAB)
            kept = _within(key, token, k_key, k_token) & _within(key, token, p_key, p_token)
            kept = kept & (tl.exp(scaled - heaviest) >= min_p)
            word = word0 if index == 0 else (word1 if index == 1 else (word2 if index == 2 else word3))
            score = tl.where(kept, scaled + gumbel(word), float("-inf"))
            best, best_token = _better(score, token, best, best_token)
    _, chosen = _first_largest(best, best_token)
    return chosen


@triton.jit
def _within(key, token, bound_key, bound_token):
    return (key > bound_key) | ((key == bound_key) & (token <= bound_token))


@triton.jit
def _ceil(x):
    whole = x.to(tl.int64)
    return whole + (whole.to(tl.float64) < x).to(tl.int64)


@triton.jit
def _bound(row_ptr, heaviest, temperature, wanted, BY_MASS: tl.constexpr, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """The last token that stays, as (key, id): in descending order, the one with which `wanted` units are reached.

    A unit is a token, or a unit of mass. `wanted` is at least 1 and at most what there is.
    """
    digits = tl.arange(0, 16)
    prefix = tl.full([], 0, tl.uint32)
    at_prefix = tl.full([], 0, tl.int64)
    for level in range(8):
        shift = 28 - 4 * level
        units = tl.zeros([16], tl.int64)
        for first in range(0, VOCAB, TILE):
            token = first + tl.arange(0, TILE)
            _, scaled, key = _load(row_ptr, token, temperature, VOCAB)
            unit = _mass(scaled, heaviest) if BY_MASS else (token < VOCAB).to(tl.int64)
            # Two shifts: the first digit has none before it, and a shift by 32 would have no meaning.
            unit = tl.where((key >> shift) >> 4 == prefix, unit, 0)
            digit = ((key >> shift) & 15).to(tl.int32)
            units += tl.sum(tl.where(digit[:, None] == digits[None, :], unit[:, None], 0), axis=0)
        above = tl.sum(units, axis=0) - tl.cumsum(units, axis=0)
        here = (above < wanted) & (above + units >= wanted)
        chosen = tl.sum(tl.where(here, digits, 0), axis=0)
        wanted -= tl.sum(tl.where(here, above, 0), axis=0)
        at_prefix = tl.sum(tl.where(here, units, 0), axis=0)
        prefix = prefix * 16 + chosen.to(tl.uint32)

    last = tl.full([], _NOTHING, tl.int32)
    if at_prefix > wanted:
        # Not all of the equals at the bound are needed: those with the lowest ids are.
        seen = tl.full([], 0, tl.int64)
        last = tl.full([], -1, tl.int32)
        for first in range(0, VOCAB, TILE):
            token = first + tl.arange(0, TILE)
            _, scaled, key = _load(row_ptr, token, temperature, VOCAB)
            unit = _mass(scaled, heaviest) if BY_MASS else (token < VOCAB).to(tl.int64)
            unit = tl.where(key == prefix, unit, 0)
            before = seen + tl.cumsum(unit, axis=0) - unit
            last = tl.maximum(last, tl.max(tl.where((unit > 0) & (before < wanted), token, -1), axis=0))
            seen += tl.sum(unit, axis=0)
    return prefix, last


def sample(
    logits: Tensor,
    *,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    sibling: Tensor,
    position: Tensor,
    greedy_only: bool,
    out: Tensor | None = None,
    counters: Counter[str] | None = None,
) -> Tensor:
    """See `operators.Sample`. `out`, int64 [R], is written and returned."""
    num_rows, vocab_size = logits.shape
    assert logits.dtype == torch.float32
    assert logits.stride(1) == 1
    assert 0 < vocab_size <= rules.MAX_VOCAB_SIZE
    params = (temperature, top_k, top_p, min_p, seed, sibling, position)
    floats, shorts, longs = torch.float32, torch.int32, torch.int64
    assert [param.dtype for param in params] == [floats, shorts, floats, floats, longs, shorts, longs]
    assert all(param.shape == (num_rows,) and param.is_contiguous() for param in params)
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device) if out is None else out
    assert out.shape == (num_rows,)
    assert out.dtype == torch.int64
    assert out.is_contiguous()
    if num_rows == 0:
        return out
    num_chunks = triton.cdiv(vocab_size, _CHUNK)
    best = torch.empty((num_rows, num_chunks), dtype=torch.float32, device=logits.device)
    token = torch.empty((num_rows, num_chunks), dtype=torch.int32, device=logits.device)
    stride = logits.stride(0)
    _scan_kernel[num_rows, num_chunks](
        logits, *params, best, token, stride, GREEDY_ONLY=greedy_only, VOCAB=vocab_size, CHUNK=_CHUNK, num_warps=4
    )
    _choose_kernel[num_rows,](
        logits,
        *params,
        best,
        token,
        out,
        stride,
        GREEDY_ONLY=greedy_only,
        NUM_CHUNKS=num_chunks,
        BLOCK_CHUNKS=triton.next_power_of_2(num_chunks),
        VOCAB=vocab_size,
        TILE=_TILE,
        num_warps=8,
    )
    if counters is not None:
        counters["sample.greedy" if greedy_only else "sample.gumbel"] += 1
    return out
