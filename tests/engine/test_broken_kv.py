"""What is not finite stays with the request that it came from, even where attention reads behind a row's end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from streamgen.config import SchedulerConfig
from streamgen.engine.admission import Limits
from streamgen.engine.async_engine import AsyncEngine
from streamgen.errors import CorruptedRowError
from streamgen.runtime.model_runner import ModelRunner
from streamgen.types import Admission, Row, SamplingParams, StepPlan
from tests.engine.world import collect, joined
from tests.models.driver import GREEDY, generate
from tests.models.tiny import BLOCK_SIZE, prompts, runner

POISON = 96
HEALTHY = [token for token in prompts()[1] if token != POISON][:5]
"""So short that what was in its second block before stays in sight behind its end."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llama")


def poisoned(folder: Path) -> ModelRunner:
    """A model for which one token's embedding is NaN."""

    def break_embedding(model: Any) -> None:
        model.embedding._method.weight[POISON] = torch.nan

    return runner("llama", folder, change_model=break_embedding)


def admit(slot: int, tokens: list[int], blocks: list[int]) -> Admission:
    return Admission(slot, slot, 0, tuple(tokens), 0, tuple(blocks), GREEDY)


def generate_two_in(
    target: ModelRunner, blocks: list[int], *, step: int, released: tuple[int, ...] = (0,)
) -> list[int]:
    """Two tokens behind the healthy prompt, in these blocks."""
    length = len(HEALTHY)
    full = not released
    first = StepPlan(step, full, released, (admit(0, HEALTHY, blocks),), (Row(0, 0, 0, 0, length, True),))
    second = StepPlan(step + 1, False, (), (), (Row(0, 0, 0, length, 1, True),))
    return [token for plan in (first, second) for token in target.launch(plan).wait().token_ids]


def test_a_broken_chunk_that_samples_nothing_fails_and_leaves_nothing_behind(folder: Path) -> None:
    """Its request may be aborted before it ever samples; a batch mate that samples, and one that does not, go on."""
    target = poisoned(folder)
    expected = generate(target, [HEALTHY], 2, block_size=BLOCK_SIZE)[0]
    target.reset()
    admitted = (admit(0, [POISON, 1, 2, 3], [40]), admit(1, HEALTHY, [41, 42]), admit(2, HEALTHY, [44, 45]))
    rows = (Row(0, 0, 0, 0, 3, False), Row(1, 1, 0, 0, len(HEALTHY), True), Row(2, 2, 0, 0, 3, False))
    result = target.launch(StepPlan(0, True, (), admitted, rows)).wait()
    assert (result.failed, result.counts, list(result.token_ids)) == ((0,), (0, 1, 0), expected[:1])
    rest = (Row(2, 2, 0, 3, len(HEALTHY) - 3, True),)
    assert list(target.launch(StepPlan(1, False, (0, 1), (), rest)).wait().token_ids) == expected[:1]
    assert generate_two_in(target, [43, 40], step=2) == expected


def test_a_step_of_chunks_alone_is_looked_at_too(folder: Path) -> None:
    target = poisoned(folder)
    expected = generate(target, [HEALTHY], 2, block_size=BLOCK_SIZE)[0]
    plan = StepPlan(0, True, (), (admit(0, [1, 2, POISON, 3], [40]),), (Row(0, 0, 0, 0, 3, False),))
    result = target.launch(plan).wait()
    assert (result.failed, result.counts) == ((0,), (0,))
    assert generate_two_in(target, [43, 40], step=1) == expected


def test_a_step_that_breaks_off_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had written by then is known to nobody but the runner, which starts from nothing."""
    target = poisoned(folder)
    expected = generate(target, [HEALTHY], 2, block_size=BLOCK_SIZE)[0]

    def fails(_hidden: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("acted out")

    with monkeypatch.context() as patched:
        patched.setattr(target._model, "logits", fails)
        plan = StepPlan(0, True, (), (admit(0, [POISON, 1, 2], [40]),), (Row(0, 0, 0, 0, 3, True),))
        with pytest.raises(RuntimeError, match="acted out"):
            target.launch(plan)
    target.reset()
    assert generate_two_in(target, [43, 40], step=1, released=()) == expected


async def test_a_long_prompt_that_breaks_early_ends_early(folder: Path) -> None:
    """Its other chunks are not computed, and the blocks of its prefix are found by nobody."""
    target = poisoned(folder)
    limits = Limits(max_model_len=128, vocab_size=97, num_blocks=30, block_size=BLOCK_SIZE, max_num_batched_tokens=8)
    engine = AsyncEngine(target, limits, SchedulerConfig(max_num_seqs=4))
    await engine.start()
    try:
        expected = joined(await collect(engine.add(HEALTHY, SamplingParams(temperature=0.0, max_tokens=2))))
        before = engine.stats().steps
        for _ in range(2):
            bad = engine.add([5, 6, POISON, *range(1, 90)], SamplingParams(temperature=0.0, max_tokens=2))
            with pytest.raises(CorruptedRowError):
                await collect(bad)
            assert bad.num_cached_tokens == 0
        assert engine.stats().steps - before <= 5
        # The prompt is longer than what was left of the pool: it gets the blocks of those that failed.
        again = engine.add([*HEALTHY, *[7] * 100], SamplingParams(temperature=0.0, max_tokens=1))
        assert len(joined(await collect(again))) == 1
        assert joined(await collect(engine.add(HEALTHY, SamplingParams(temperature=0.0, max_tokens=2)))) == expected
    finally:
        await engine.shutdown()
