from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from streamgen.types import GREEDY_TEMPERATURE, RowSampling
from streamgen_kernels.operators import Operators


@dataclass(frozen=True)
class SamplingRows:
    """Sampling parameters of the rows that sample in a step, on the device. Shapes [R]."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    sibling: Tensor
    position: Tensor
    """Position of the token that is sampled."""
    greedy_only: bool
    banned: tuple[Tensor, Tensor] | None
    """Indices (row, token id) of logits that must not win."""


class Sampler:
    """From logits to token ids. A call of its own, apart from the forward pass, so that a mask may come between."""

    def __init__(self, operators: Operators) -> None:
        self._sample = operators.sample

    def __call__(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        """From logits [R, V] float32, which are written to: token ids int64 [R], -1 where the logits are not finite."""
        if rows.banned is not None:
            # Only finite logits are overwritten: a ban must not hide that a row is broken.
            row, token = rows.banned
            logits[row, token] = torch.where(logits[row, token].isfinite(), -torch.inf, logits[row, token])
        return self._sample(
            logits,
            temperature=rows.temperature,
            top_k=rows.top_k,
            top_p=rows.top_p,
            min_p=rows.min_p,
            seed=rows.seed,
            sibling=rows.sibling,
            position=rows.position,
            greedy_only=rows.greedy_only,
        )


def banned_pairs(
    sampling: list[RowSampling], positions: list[int], vocab_size: int
) -> tuple[list[int], list[int]] | None:
    """(rows, token ids) that may not be sampled yet because of min_tokens; None if there are none."""
    rows: list[int] = []
    tokens: list[int] = []
    for row, (params, position) in enumerate(zip(sampling, positions, strict=True)):
        if position < params.min_tokens_until:
            ids = [token for token in params.banned_ids if token < vocab_size]
            rows += [row] * len(ids)
            tokens += ids
    return (rows, tokens) if rows else None


def is_greedy(params: RowSampling) -> bool:
    return params.temperature < GREEDY_TEMPERATURE
