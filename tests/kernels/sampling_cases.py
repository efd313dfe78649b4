"""Rows of sampling parameters, and a sampler by hand: plain Python over one row, with rules that can be made wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from streamgen_kernels.reference.random import gumbel, row_words
from tests.kernels.support import DEVICE

BACKENDS = ("reference", "cpu", "triton")


@dataclass(frozen=True)
class Row:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    sibling: int = 0
    position: int = 0


def tensors(rows):
    """The keyword arguments of `sample` for these rows."""
    dtypes = {"top_k": torch.int32, "sibling": torch.int32, "seed": torch.int64, "position": torch.int64}
    return {
        name: torch.tensor([getattr(row, name) for row in rows], dtype=dtypes.get(name, torch.float32), device=DEVICE)
        for name in Row.__dataclass_fields__
    }


def choose(sample, logits, rows, *, greedy_only=False):
    logits = torch.as_tensor(logits, dtype=torch.float32, device=DEVICE)
    return sample(logits, **tensors(rows), greedy_only=greedy_only).tolist()


@dataclass(frozen=True)
class Rules:
    """What the sampler by hand does; every field at its default is right."""

    renormalize: bool = True
    keep_crossing: bool = True
    from_below: bool = False
    low_ids_first: bool = True
    top_p_first: bool = False
    min_p_of_all: bool = False
    at_least_one: bool = True
    clamp_top_k: bool = True
    keyed_by_slot: bool = False
    noise: bool = True


RIGHT = Rules()


def kept_by_hand(logits, row, rules=RIGHT):
    """Ids that may be drawn, as a set, from a list of floats."""
    scaled = [logit / row.temperature for logit in logits]
    weights = [math.exp(x - max(scaled)) for x in scaled]
    order = sorted(range(len(logits)), key=lambda v: (-scaled[v], v if rules.low_ids_first else -v))
    kept = order
    steps = [_top_p, _top_k] if rules.top_p_first else [_top_k, _top_p]
    for step in steps:
        kept = step(kept, weights, row, rules)
    most = sum(weights) if rules.min_p_of_all else max(weights)
    kept = [v for v in kept if weights[v] >= row.min_p * most]
    return set(kept or (order[:1] if rules.at_least_one else ()))


def _top_k(order, weights, row, rules):
    if row.top_k <= 0 or (row.top_k >= len(weights) and rules.clamp_top_k):
        return order
    return order[: row.top_k % len(weights)] if row.top_k > len(weights) else order[: row.top_k]


def _top_p(order, weights, row, rules):
    if row.top_p >= 1:
        return order
    total = sum(weights[v] for v in order) if rules.renormalize else sum(weights)
    kept, mass = [], 0.0
    if rules.from_below:
        mass_to = {v: sum(weights[u] for u in order[n:]) for n, v in enumerate(order)}
        return [v for v in order if mass_to[v] > (1 - row.top_p) * total]
    for v in order:
        if mass >= row.top_p * total - 1e-9 or (
            not rules.keep_crossing and mass + weights[v] > row.top_p * total + 1e-9
        ):
            break
        kept.append(v)
        mass += weights[v]
    return kept or (order[:1] if rules.at_least_one else [])


def sampler_by_hand(rules=RIGHT):
    """An operator with `sample`'s signature; -1 where the rules leave nothing."""

    def sample(logits, *, temperature, top_k, top_p, min_p, seed, sibling, position, greedy_only):
        del greedy_only
        params = zip(*(x.tolist() for x in (temperature, top_k, top_p, min_p, seed, sibling, position)), strict=True)
        rows = [replace(Row(*values), top_p=round(values[2], 6), min_p=round(values[3], 6)) for values in params]
        seeds = seed + torch.arange(len(rows), device=DEVICE) * rules.keyed_by_slot
        noise = gumbel(row_words(seeds, sibling, position, logits.shape[1])).tolist()
        return torch.tensor([_draw(*each, rules) for each in zip(logits.tolist(), rows, noise, strict=True)])

    return sample


def _draw(logits, row, noise, rules):
    if row.temperature < 1e-5:
        return logits.index(max(logits))
    kept = kept_by_hand(logits, row, rules)
    scores = {v: logits[v] / row.temperature + noise[v] * rules.noise for v in kept}
    return max(kept, key=lambda v: (scores[v], -v), default=-1)
