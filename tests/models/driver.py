"""Drives a runner by hand: a scheduler of a few lines, so that these tests stand on the runner alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from streamgen.layers.context import ForwardContext
from streamgen.runtime.model_runner import ModelRunner
from streamgen.runtime.runner import Runner
from streamgen.types import Admission, Row, RowSampling, StepPlan, StepResult

GREEDY = RowSampling(0.0, 0, 1.0, 0.0, 0, 0, 0, ())


@dataclass
class _Sequence:
    tokens: list[int]
    wanted: int
    slot: int
    sampling: RowSampling
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    admitted: bool = False


def prompt_logits(runner: ModelRunner, prompt: Sequence[int], *, block_size: int, chunk: int = 10**9) -> torch.Tensor:
    """The logits [tokens, V] of all of a prompt's tokens, of which a step wants the last one's only."""
    model = runner._model
    forward, seen = model.forward, []

    def all_tokens(token_ids: torch.Tensor, context: ForwardContext, wanted: torch.Tensor) -> torch.Tensor:
        hidden = forward(token_ids, context, torch.arange(len(token_ids)))
        seen.append(model.logits(hidden).clone())
        return hidden[wanted]

    blocks = tuple(range(1, 2 + len(prompt) // block_size))
    admitted = (Admission(0, 0, 0, tuple(prompt), 0, blocks, GREEDY),)
    model.forward = all_tokens
    try:
        for step, start in enumerate(range(0, len(prompt), chunk)):
            count = min(chunk, len(prompt) - start)
            rows = (Row(0, 0, 0, start, count, start + count == len(prompt)),)
            runner.launch(StepPlan(step, step == 0, (), admitted if step == 0 else (), rows)).wait()
    finally:
        del model.forward
    return torch.cat(seen)


def generate(
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    *,
    block_size: int,
    chunk: int = 10**9,
    sampling: Sequence[RowSampling] | RowSampling = GREEDY,
    eos: int | None = None,
    slots: Sequence[int] | None = None,
    one_at_a_time: bool = False,
) -> list[list[int]]:
    """Tokens generated for each prompt, `chunk` tokens of each a step, all prompts together or one after the other."""
    params = [sampling] * len(prompts) if isinstance(sampling, RowSampling) else list(sampling)
    places = list(slots or range(len(prompts)))
    sequences = [
        _Sequence(list(prompt), max_tokens, place, param)
        for prompt, place, param in zip(prompts, places, params, strict=True)
    ]
    # Blocks that follow each other nowhere, so that a table read wrongly shows.
    free = list(range(1, 10**5))
    step = 0
    for group in [[sequence] for sequence in sequences] if one_at_a_time else [sequences]:
        released: tuple[int, ...] = ()
        running = list(group)
        while running:
            admitted, rows = [], []
            for sequence in running:
                count = min(chunk, len(sequence.tokens) - sequence.computed)
                end = sequence.computed + count
                new = []
                while (len(sequence.blocks) + len(new)) * block_size < end:
                    new.append(free.pop(len(sequence.blocks) % 2))
                sequence.blocks += new
                if not sequence.admitted:
                    admitted.append(
                        Admission(
                            sequence.slot, sequence.slot, 0, tuple(sequence.tokens), 0, tuple(new), sequence.sampling
                        )
                    )
                    sequence.admitted, new = True, []
                samples = end == len(sequence.tokens)
                rows.append(Row(sequence.slot, sequence.slot, 0, sequence.computed, count, samples, tuple(new)))
                sequence.computed = end
            result = runner.launch(StepPlan(step, False, released, tuple(admitted), tuple(rows))).wait()
            step += 1
            _take(running, result)
            done = [
                s for s in running if len(s.generated) == s.wanted or (eos is not None and s.generated[-1:] == [eos])
            ]
            released = tuple(sequence.slot for sequence in done)
            for sequence in done:
                free[:0] = sequence.blocks
            running = [sequence for sequence in running if sequence not in done]
    return [sequence.generated for sequence in sequences]


def _take(running: list[_Sequence], result: StepResult) -> None:
    tokens = iter(result.token_ids)
    assert not result.failed
    for sequence, count in zip(running, result.counts, strict=True):
        if count:
            token = next(tokens)
            sequence.tokens.append(token)
            sequence.generated.append(token)
