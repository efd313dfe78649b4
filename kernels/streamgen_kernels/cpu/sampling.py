"""Sampling for CPUs: the rules and the random numbers of `reference/sampling.py`, with a sort of few candidates."""

from __future__ import annotations

import torch
from torch import Tensor

from streamgen_kernels.operators import GREEDY_TEMPERATURE
from streamgen_kernels.reference.random import gumbel, row_words, token_words
from streamgen_kernels.reference.sampling import MASS_UNITS, kept_tokens, mass_wanted

_CANDIDATES = 512
"""Most likely tokens that are looked at before the whole vocabulary is sorted."""


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
    """See `operators.Sample`."""
    # NaN is the largest of all here, so that one pass finds the greedy token and every kind of broken row. It is
    # numpy's pass: torch's takes ten times as long when the index is wanted.
    tokens = torch.from_numpy(logits.numpy().argmax(-1))
    broken = ~logits.gather(-1, tokens[:, None])[:, 0].isfinite()
    if not greedy_only:
        truncated = (top_k > 0) | (top_p < 1) | (min_p > 0)
        for row in ((temperature >= GREEDY_TEMPERATURE) & ~broken).nonzero()[:, 0].tolist():
            one = slice(row, row + 1)
            scaled = _scaled(logits[one], temperature[one])
            key = (seed[one, None], sibling[one, None], position[one, None])
            if truncated[row]:
                tokens[row] = _draw_truncated(scaled, top_k[one], top_p[one], min_p[one], key)
            else:
                noise = gumbel(row_words(seed[one], sibling[one], position[one], logits.shape[-1]))
                tokens[row] = (scaled + noise).max(-1).indices[0]
    return tokens.masked_fill_(broken, -1)


def _scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    largest = torch.finfo(torch.float32).max
    # The clamp would let a banned token's -inf back in.
    return (logits / temperature[:, None]).clamp_(-largest, largest).masked_fill_(logits == -torch.inf, -torch.inf)


def _draw_truncated(
    scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, key: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """One token of scaled [1, V], drawn from what top_k, top_p and min_p leave."""
    kept = _kept_candidates(scaled, top_k, top_p, min_p)
    if kept is None:
        kept = kept_tokens(scaled, top_k, top_p, min_p)[0].nonzero()[:, 0]
    score = scaled[0, kept] + gumbel(token_words(*key, kept[None]))[0]
    return kept[score == score.max()].min()


def _kept_candidates(scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor | None:
    """Ids of the kept tokens, if the most likely ones settle it; None if the whole row must be sorted.

    What is kept is a beginning of the row in descending order. The candidates show it if it ends among those above
    the least of them: of tokens equal to the least, some may be missing here.
    """
    vocab_size = scaled.shape[-1]
    values, ids = scaled[0].topk(min(_CANDIDATES, vocab_size))
    above = vocab_size if len(values) == vocab_size else int((values > values[-1]).sum())
    k, p, least = int(top_k[0]), float(top_p[0]), float(min_p[0])
    if above < k < vocab_size:
        return None
    ids, by_id = ids.sort()
    values, order = values[by_id].sort(descending=True, stable=True)
    ids = ids[order]
    weight = torch.exp(values - values[0])
    kept = min(k, vocab_size) if k > 0 else vocab_size
    if p < 1:
        mass = (weight * MASS_UNITS).to(torch.int64)
        if kept <= above:
            total = mass[:kept].sum()
        else:
            total = (torch.exp(scaled[0] - values[0]) * MASS_UNITS).to(torch.int64).sum()
        before = mass.cumsum(0) - mass
        kept = min(kept, max(1, int((before < mass_wanted(top_p[0], total)).sum())))
    if least > 0:
        kept = min(kept, int((weight >= min_p[0]).sum()))
    return ids[:kept] if kept <= above else None
