"""The runner as its caller sees it, on a tiny model."""

from __future__ import annotations

import pytest
import torch

from streamgen.types import Admission, Row, RowSampling, StepPlan
from tests.models.driver import GREEDY, generate
from tests.models.tiny import BLOCK_SIZE, prompts, runner


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("llama")


def sampled(seed, *, temperature=1.0, top_p=1.0, sibling=0):
    return RowSampling(temperature, 0, top_p, 0.0, seed, sibling, 0, ())


def admit(slot, tokens, blocks, sampling=GREEDY, computed=0):
    return Admission(slot, slot, 0, tuple(tokens), computed, tuple(blocks), sampling)


@pytest.mark.parametrize("mode", ["int8", "float32"])
def test_a_row_is_the_same_alone_and_in_any_batch(mode, folder):
    alone = generate(runner("llama", folder, mode=mode), prompts(), 30, block_size=BLOCK_SIZE, one_at_a_time=True)
    together = generate(runner("llama", folder, mode=mode), prompts(), 30, block_size=BLOCK_SIZE)
    assert together == alone


def test_int8_logits_of_a_row_are_the_same_bits_alone_and_in_a_batch(folder):
    """A decode step of rows at several lengths against each of them by itself: every bit of every logit."""
    seen = []

    def spy(made):
        made.logits = lambda hidden, real=made.logits: seen.append(real(hidden)) or seen[-1].clone()

    lengths = [1, 5, 17, 63, 64, 65, 90]
    histories = [[(7 * n + i) % 97 for i in range(n)] for n in lengths]
    blocks = [list(range(1 + 25 * i, 24 + 25 * i)) for i in range(len(lengths))]
    target = runner("llama", folder, mode="int8", change_model=spy)
    admitted = tuple(admit(slot, tokens, blocks[slot]) for slot, tokens in enumerate(histories))
    for slot, admission in enumerate(admitted):
        row = Row(slot, slot, 0, 0, lengths[slot], True)
        target.launch(StepPlan(slot, False, (), (admission,), (row,))).wait()
    rows = [Row(slot, slot, 0, n, 1, True) for slot, n in enumerate(lengths)]
    seen.clear()
    target.launch(StepPlan(10, False, (), (), tuple(rows))).wait()
    together = seen.pop()
    for slot, row in enumerate(rows):
        target.launch(StepPlan(11 + slot, False, (), (), (row,))).wait()
        assert torch.equal(seen.pop()[0], together[slot])


def test_E1_seeded_output_does_not_change_with_batch_mates_or_slot(folder):
    prompt = prompts()[1]
    alone = generate(runner("llama", folder), [prompt], 20, block_size=BLOCK_SIZE, sampling=sampled(42))
    mates = [sampled(7, temperature=1.7), sampled(42), sampled(42, top_p=0.5), sampled(42, sibling=1), sampled(42)]
    batch = generate(
        runner("llama", folder),
        [prompts()[0], *[prompt] * 4],
        20,
        block_size=BLOCK_SIZE,
        sampling=mates,
        slots=[5, 0, 3, 1, 7],
    )
    assert batch[1] == batch[4] == alone[0]
    assert batch[3] != alone[0], "siblings draw their own numbers"


def test_the_next_step_reads_what_was_sampled_from_the_device(folder):
    """Two steps are launched before either result is asked for."""
    expected = generate(runner("llama", folder), [prompts()[1]], 2, block_size=BLOCK_SIZE)[0]
    target = runner("llama", folder)
    first = target.launch(StepPlan(0, False, (), (admit(2, prompts()[1], [3, 9]),), (Row(2, 2, 0, 0, 7, True),)))
    second = target.launch(StepPlan(1, False, (), (), (Row(2, 2, 0, 7, 1, True),)))
    assert second.ready()
    assert [*first.wait().token_ids, *second.wait().token_ids] == expected


def test_a_chunk_that_does_not_sample_has_no_token(folder):
    target = runner("llama", folder)
    plan = StepPlan(0, False, (), (admit(0, prompts()[1], [3]),), (Row(0, 0, 0, 0, 4, False),))
    result = target.launch(plan).wait()
    assert (result.counts, result.token_ids, result.failed) == ((0,), (), ())
    empty = target.launch(StepPlan(1, False, (0,), (), ())).wait()
    assert (empty.step, empty.counts) == (1, ())


def test_computed_tokens_of_an_admission_are_read_from_shared_blocks(folder):
    """A prefix hit: the second request brings nothing but its last token, and the block of the first one."""
    prompt = prompts()[1]
    target = runner("llama", folder)
    first = target.launch(StepPlan(0, False, (), (admit(0, prompt, [3, 9]),), (Row(0, 0, 0, 0, 7, True),))).wait()
    hit = admit(1, prompt, [3, 5], computed=4)
    second = target.launch(StepPlan(1, False, (), (hit,), (Row(1, 1, 0, 4, 3, True),))).wait()
    assert second.token_ids == first.token_ids


def test_end_tokens_are_banned_until_min_tokens(folder):
    prompt = prompts()[1]
    free = generate(runner("llama", folder), [prompt], 6, block_size=BLOCK_SIZE)[0]
    banned = RowSampling(0.0, 0, 1.0, 0.0, 0, 0, len(prompt) + 3, (free[0], free[2], 10**6))
    held = generate(runner("llama", folder), [prompt], 6, block_size=BLOCK_SIZE, sampling=banned)[0]
    assert not {free[0], free[2]} & set(held[:3])


def test_a_broken_row_fails_alone_and_leaves_nothing_behind(folder):
    """One token's embedding is NaN; neither a batch mate nor the next holder of the blocks may notice."""
    poison = 96

    def break_embedding(model):
        model.embedding._method.weight[poison] = torch.nan

    healthy = [tokens for tokens in prompts()[1] if tokens != poison]
    target = runner("llama", folder, change_model=break_embedding)
    expected = generate(target, [healthy], 2, block_size=BLOCK_SIZE)[0]

    target.reset()
    rows = (Row(0, 0, 0, 0, 3, True), Row(1, 1, 0, 0, len(healthy), True))
    plan = StepPlan(0, True, (), (admit(0, [1, poison, 2], [40]), admit(1, healthy, [41, 42])), rows)
    result = target.launch(plan).wait()
    assert result.failed == (0,)
    assert result.counts == (0, 1)
    assert list(result.token_ids) == expected[:1]

    again = StepPlan(1, False, (0, 1), (admit(0, healthy, [40, 43]),), (Row(0, 0, 0, 0, len(healthy), True),))
    first = target.launch(again).wait()
    second = target.launch(StepPlan(2, False, (), (), (Row(0, 0, 0, len(healthy), 1, True),))).wait()
    assert [*first.token_ids, *second.token_ids] == expected


def test_a_full_plan_starts_from_nothing(folder):
    target = runner("llama", folder)
    expected = generate(target, [prompts()[2]], 5, block_size=BLOCK_SIZE)
    target.reset()
    assert generate(target, [prompts()[2]], 5, block_size=BLOCK_SIZE, slots=[4]) == expected
