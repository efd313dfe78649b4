"""The sampler's random numbers: Philox-4x32-10, keyed by (seed, sibling, position, purpose, token id).

Philox (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) is a function from a key
of two and a counter of four 32-bit words to four random words; there is no state, so a number depends on neither
batch nor slot. Every backend uses these very integers:

- key = (low, high) word of the 64-bit seed;
- counter = (lane, low word of position, sibling, purpose);
- token id v takes word (v mod 1024) div 256 of lane (v div 1024) · 256 + v mod 256. One Philox call so serves four
  ids that lie 256 apart, and a kernel reads each of the four as one contiguous run.

A word w becomes u = (float32(w) + 0.5) · 2⁻³², an exponential variate e = -log(1 - u), and a Gumbel variate
g = -log(e), all in float32. For u < 2⁻⁶ the series u + u²/2 + u³/3 + u⁴/4 stands for -log(1 - u): it keeps the
resolution of 2⁻³² in the upper tail, which the largest of 150,000 variates is drawn from; where u rounds to 1, 1 - u
is taken as 2⁻³³. u is the same in all backends, bit for bit; log is each backend's own and may differ in its last bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

STRIPE = 1024
"""Token ids that four words of 256 lanes serve."""
LANES = STRIPE // 4
PURPOSE_SAMPLE = 0
"""The draw of a row's next token. Other draws for the same position (acceptance of a draft) take another purpose."""

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_SERIES_BELOW = 2.0**-6
_LEAST = 2.0**-33


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Philox-4x32-10 on broadcastable int64 tensors that hold 32-bit words; returns the four output words alike."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The 64-bit product wraps in int64, which leaves its bits what they are in uint64.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & _MASK) ^ c1 ^ k0,
            product1 & _MASK,
            ((product0 >> 32) & _MASK) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def row_words(
    seed: Tensor, sibling: Tensor, position: Tensor, vocab_size: int, purpose: int = PURPOSE_SAMPLE
) -> Tensor:
    """The random words of token ids 0 … vocab_size - 1 for each row: int64 [R, vocab_size], values below 2³²."""
    if vocab_size <= LANES:
        ids = torch.arange(vocab_size, device=seed.device)
        return token_words(seed[:, None], sibling[:, None], position[:, None], ids, purpose)
    stripes = -(-vocab_size // STRIPE)
    lane = torch.arange(stripes * LANES, device=seed.device)
    words = torch.stack(_draw(seed[:, None], sibling[:, None], position[:, None], lane, purpose), dim=1)
    by_stripe = words.view(seed.shape[0], 4, stripes, LANES).transpose(1, 2)
    return by_stripe.reshape(seed.shape[0], stripes * STRIPE)[:, :vocab_size]


def token_words(
    seed: Tensor, sibling: Tensor, position: Tensor, token_ids: Tensor, purpose: int = PURPOSE_SAMPLE
) -> Tensor:
    """The same words for a few token ids only: all arguments broadcast (ids [R, n] with seed [R, 1], say)."""
    lane = token_ids // STRIPE * LANES + token_ids % LANES
    words = torch.stack(torch.broadcast_tensors(*_draw(seed, sibling, position, lane, purpose)), dim=-1)
    return words.gather(-1, (token_ids % STRIPE // LANES).expand(words.shape[:-1])[..., None])[..., 0]


def gumbel(words: Tensor) -> Tensor:
    """Gumbel variates, float32, from random words."""
    u = (words.to(torch.float32) + 0.5) * 2.0**-32
    series = u * (1 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4))))
    exponential = torch.where(u < _SERIES_BELOW, series, -torch.log((1 - u).clamp_min(_LEAST)))
    return -torch.log(exponential)


def _draw(seed: Tensor, sibling: Tensor, position: Tensor, lane: Tensor, purpose: int) -> tuple[Tensor, ...]:
    seed = seed.to(torch.int64)
    words = (lane.to(torch.int64), position.to(torch.int64) & _MASK, sibling.to(torch.int64) & _MASK)
    return philox((*words, torch.full_like(seed, purpose)), (seed & _MASK, (seed >> 32) & _MASK))
