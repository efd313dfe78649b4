"""How a token is chosen, plainly. The rules, in this order, for a row with logits l:

1. NaN or +inf in l, or nothing but -inf: the result is -1.
2. temperature < GREEDY_TEMPERATURE: the largest logit, the lowest id of equals.
3. s = l / temperature, held within float32's finite range; a banned token stays at -inf.
4. top_k > 0: the k largest s stay, of equals those with lower ids.
5. top_p < 1: in descending order (equals by id), a token stays if the mass before it is less than top_p of the mass
   of what step 4 left: the smallest set whose mass reaches top_p. Mass is counted in whole units of 2⁻³⁴ of the
   heaviest token's, so that a sum does not depend on its order, and the kept set not on the batch or the kernel.
   A mass that misses by less than top_p's own rounding reaches: 0.8 keeps four of five equals, though float32's 0.8
   is a little more than four fifths.
6. min_p > 0: tokens with at least min_p of the heaviest one's mass stay.
7. The token with the largest s + Gumbel variate (see `random.py`), the lowest id of equals: a draw from the softmax
   of what is left (Gumbel 1954; Maddison, Tarlow, Minka 2014), without computing it.

The heaviest token always stays. top_k = 0 or less, top_p = 1 and min_p = 0 keep everything.
"""

from __future__ import annotations

import torch
from torch import Tensor

from streamgen_kernels.operators import GREEDY_TEMPERATURE
from streamgen_kernels.reference.random import gumbel, row_words

MASS_UNITS = 2**34
ROUNDED_DOWN = 1 - 2.0**-23
MAX_VOCAB_SIZE = 2**18
"""So that a sum of masses stays below 2⁵², within what float64 holds exactly."""


def kept_tokens(scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Steps 4 to 6: which tokens may be drawn, bool [R, V], for scaled logits [R, V]."""
    vocab_size = scaled.shape[-1]
    assert vocab_size <= MAX_VOCAB_SIZE
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    weight = torch.exp(ordered - ordered[:, :1])
    rank = torch.arange(vocab_size, device=scaled.device)
    kept = rank < torch.where(top_k > 0, top_k, vocab_size)[:, None]

    mass = (weight * MASS_UNITS).to(torch.int64) * kept
    before = mass.cumsum(-1) - mass
    kept &= (before < mass_wanted(top_p, mass.sum(-1))[:, None]) | (top_p >= 1)[:, None] | (rank == 0)
    kept &= weight >= min_p[:, None]
    return torch.zeros_like(kept).scatter(-1, order, kept)


def mass_wanted(top_p: Tensor, total: Tensor) -> Tensor:
    """Units of mass, int64, that the tokens kept by top_p must reach, out of total."""
    return torch.ceil(top_p.double() * ROUNDED_DOWN * total).to(torch.int64)


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
) -> Tensor:
    """See `operators.Sample`. Every row takes every step here, whatever `greedy_only` says."""
    del greedy_only
    greedy = temperature < GREEDY_TEMPERATURE
    largest = torch.finfo(torch.float32).max
    quotient = (logits / torch.where(greedy, 1.0, temperature)[:, None]).clamp(-largest, largest)
    scaled = torch.where(logits == -torch.inf, -torch.inf, quotient)
    noise = gumbel(row_words(seed, sibling, position, logits.shape[-1]))
    score = torch.where(kept_tokens(scaled, top_k, top_p, min_p), scaled + noise, -torch.inf)
    token = _first_largest(torch.where(greedy[:, None], logits, score))
    broken = torch.isnan(logits).any(-1) | (logits == torch.inf).any(-1) | (logits == -torch.inf).all(-1)
    return torch.where(broken, -1, token)


def _first_largest(score: Tensor) -> Tensor:
    # argmax does not say which of equals it returns.
    largest = score.amax(-1, keepdim=True)
    index = torch.arange(score.shape[-1], device=score.device)
    return torch.where(score == largest, index, score.shape[-1]).amin(-1)
