"""The whole engine on a fake runner: from `add` to the end of the stream, on a real loop and a real GPU thread."""

from __future__ import annotations

import pytest

from streamgen.errors import (
    ContextLengthError,
    CorruptedRowError,
    DrainingError,
    EngineError,
    InvalidRequestError,
    QueueFullError,
    SlowReaderError,
)
from streamgen.observability.metrics import Metrics
from streamgen.runtime.fake import scripted
from streamgen.scheduling import kv_cache_manager
from streamgen.types import FinishReason, SamplingParams, StepResult
from tests.engine.world import EOS, GREEDY, TOKENIZER, collect, joined, running


async def test_scripted_tokens_come_back_one_delta_a_step() -> None:
    async with running(scripted([11, 12, 13, 14])) as engine:
        deltas = await collect(engine.add([1, 2, 3], SamplingParams(max_tokens=4)))
    assert [d.token_ids for d in deltas] == [(11,), (12,), (13,), (14,)]
    assert [d.finish_reason for d in deltas] == [None, None, None, FinishReason.LENGTH]


async def test_two_steps_are_in_flight() -> None:
    """The fake withholds a result until the next step was launched: a loop that waits for it first would hang."""
    seen: list[int] = []
    async with running(scripted(range(20, 40)), before_step=lambda plan: seen.append(plan.step)) as engine:
        stream = engine.add([1], SamplingParams(max_tokens=10))
        assert len(joined(await collect(stream))) == 10
        assert engine.stats().steps == len(seen) == 10


async def test_an_end_token_ends_it_and_leaves_a_ghost_row() -> None:
    async with running(scripted([11, EOS], then=12)) as engine:
        stream = engine.add([1, 2], GREEDY)
        deltas = await collect(stream)
        assert joined(deltas) == [11, EOS]
        assert deltas[-1].finish_reason is FinishReason.STOP
        assert stream.usage.completion_tokens == 2
        # The next request takes the slot that a ghost row may still use.
        assert joined(await collect(engine.add([3], GREEDY))) == [11, EOS]


async def test_ignore_eos_and_min_tokens() -> None:
    async with running(scripted([EOS] * 3, then=7)) as engine:
        ignoring = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
        assert joined(await collect(engine.add([1], ignoring))) == [EOS, EOS, EOS, 7, 7]
        at_least = SamplingParams(temperature=0.0, max_tokens=5, min_tokens=2)
        assert joined(await collect(engine.add([1], at_least))) == [0, 0, EOS]


async def test_a_stop_token_is_named_and_is_no_text() -> None:
    ids = TOKENIZER.encode("abc", add_special_tokens=False)
    async with running(scripted([*ids, *ids]), text=True) as engine:
        deltas = await collect(engine.add([1], SamplingParams(max_tokens=6, stop_token_ids=(ids[2],))))
    assert "".join(d.text for d in deltas) == "ab"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, ids[2])


async def test_siblings_end_apart_and_share_the_prompt() -> None:
    async with running(scripted([11, 12, 13])) as engine:
        stream = engine.add(list(range(1, 20)), SamplingParams(max_tokens=3, n=3))
        deltas = await collect(stream)
        for index in range(3):
            assert joined(deltas, index) == [11, 12, 13]
            assert sum(d.finish_reason is not None for d in deltas if d.index == index) == 1
        assert stream.usage.prompt_tokens == 19
        assert stream.usage.completion_tokens == 9
        assert engine._runner.num_tokens < 19 * 2


async def test_siblings_have_one_prompt_among_them() -> None:
    async with running(scripted([11, 12])) as engine:
        stream = engine.add(list(range(1, 20)), SamplingParams(max_tokens=2, n=3))
        siblings = list(engine.scheduler.requests.values())
        assert len(siblings) == 3
        assert all(request.prompt_token_ids is stream.prompt_token_ids for request in siblings)
        plan = engine.scheduler.schedule()
        assert plan.admitted[0].token_ids is stream.prompt_token_ids
        stream.abort()
        engine.scheduler.update(StepResult(plan.step, (1,), (11,)))


async def test_siblings_hash_their_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    hash_block = kv_cache_manager.hash_block

    def counting(*arguments: object) -> bytes:
        hashed.append(1)
        return hash_block(*arguments)

    monkeypatch.setattr(kv_cache_manager, "hash_block", counting)
    prompt, siblings = [*range(1, 66)], 4
    async with running(scripted(range(20, 40)), num_blocks=128) as engine:
        stream = engine.add(prompt, SamplingParams(max_tokens=8, n=siblings))
        deltas = await collect(stream)
        # Sixteen blocks of the prompt for all, and two of the output for each of them.
        assert len(hashed) == 16 + siblings * 2
        assert all(joined(deltas, index) == list(range(20, 28)) for index in range(siblings))
        again = engine.add(prompt, SamplingParams(max_tokens=1))
        await collect(again)
        assert again.usage.cached_tokens == 64


async def test_cached_tokens_are_counted() -> None:
    async with running(scripted([11])) as engine:
        for cached in (0, 16):
            stream = engine.add(list(range(1, 20)), SamplingParams(max_tokens=2))
            await collect(stream)
            assert stream.usage.cached_tokens == cached
        stream = engine.add(list(range(1, 20)), SamplingParams(max_tokens=2), tenant="another")
        await collect(stream)
        assert stream.usage.cached_tokens == 0


async def test_D3_what_changes_the_kv_is_in_the_key() -> None:
    """Equal ids under another salt (model, adapter, image, tenant: whatever the server puts there) find nothing."""
    async with running(scripted([11])) as engine:
        prompt = list(range(1, 20))
        await collect(engine.add(prompt, GREEDY, tenant="a"))
        for tenant, cached in (("b", 0), ("a", 16), ("", 0)):
            stream = engine.add(prompt, GREEDY, tenant=tenant)
            await collect(stream)
            assert stream.usage.cached_tokens == cached


async def test_D5_a_tenants_prompt_is_found_by_itself_alone() -> None:
    """Neither the cached count nor the work done tells tenant B what tenant A asked."""
    async with running(scripted([11])) as engine:
        prompt = list(range(1, 40))
        work = []
        for tenant in ("a", "b", "a"):
            before = engine._runner.num_tokens
            await collect(engine.add(prompt, SamplingParams(max_tokens=1), tenant=tenant))
            work.append(engine._runner.num_tokens - before)
        assert work[0] == work[1] == 39
        assert work[2] < 8


@pytest.mark.parametrize("phase", ["queued", "prefilling", "decoding"])
async def test_C1_an_abort_takes_effect_within_a_step(phase: str) -> None:
    async with running(scripted([], then=9), max_num_seqs=1) as engine:
        blocker = engine.add([1], SamplingParams(max_tokens=100)) if phase == "queued" else None
        prompt = [2] * 100 if phase == "prefilling" else [2]
        stream = engine.add(prompt, SamplingParams(max_tokens=20))
        if phase == "decoding":
            await stream.get()
        stream.abort()
        stream.abort()
        assert stream.request_id not in engine.scheduler.requests
        deltas = await collect(stream)
        assert deltas[-1].finish_reason is FinishReason.ABORT
        assert sum(d.finish_reason is not None for d in deltas) == 1
        if blocker is not None:
            blocker.abort()
        assert joined(await collect(engine.add([3], SamplingParams(max_tokens=2)))) == [9, 9]


async def test_C4_a_request_that_can_never_fit_is_refused_at_once() -> None:
    async with running(scripted([], then=9), num_blocks=9) as engine:
        assert engine.max_model_len == 32
        with pytest.raises(ContextLengthError, match="32 tokens"):
            engine.add([1] * 36, SamplingParams(max_tokens=1))
        with pytest.raises(ContextLengthError):
            engine.add([1] * 30, SamplingParams(max_tokens=3))
        assert len(joined(await collect(engine.add([1] * 30, SamplingParams())))) == 2
        assert len(joined(await collect(engine.add([1], SamplingParams(max_tokens=3))))) == 3


@pytest.mark.parametrize("prompt", [[], [-1], [100_000], [1, 2**63], [1, 2.0], ["1"]])
async def test_a_bad_prompt_never_reaches_the_engine(prompt: list[int]) -> None:
    async with running(scripted([1])) as engine:
        with pytest.raises(InvalidRequestError):
            engine.add(prompt, GREEDY)
        assert engine.stats().steps == 0


async def test_the_queue_is_bounded() -> None:
    async with running(scripted([], then=9), max_num_seqs=1, max_num_queued_reqs=2) as engine:
        streams = [engine.add([1], SamplingParams(max_tokens=4)) for _ in range(3)]
        with pytest.raises(QueueFullError) as refused:
            engine.add([1], GREEDY)
        assert refused.value.headers() == {"Retry-After": "1"}
        for stream in streams:
            assert len(joined(await collect(stream))) == 4
    async with running(scripted([], then=9), max_num_seqs=1, max_num_queued_tokens=20) as engine:
        first = engine.add([1] * 15, SamplingParams(max_tokens=4))
        with pytest.raises(QueueFullError):
            engine.add([1] * 15, GREEDY)
        await collect(first)


async def test_rows_that_are_not_finite_fail_alone() -> None:
    def script(prompt: list[int], output: list[int]) -> int:
        return -1 if prompt[0] == 66 and len(output) == 2 else 9

    async with running(script) as engine:
        bad, good = engine.add([66], GREEDY), engine.add([1], GREEDY)
        with pytest.raises(CorruptedRowError):
            await collect(bad)
        assert joined(await collect(good)) == [9] * 8


async def test_a_text_that_cannot_be_told_ends_its_own_stream_alone() -> None:
    async with running(scripted(pieces("abcdefgh")), text=True) as engine:
        broken, sound = engine.add([1], GREEDY), engine.add([2], GREEDY)
        engine._outputs.get(broken.request_id).detokenizer = object()
        with pytest.raises(EngineError):
            await collect(broken)
        assert "".join(d.text for d in await collect(sound)) == "abcdefgh"
        assert engine.healthy


async def test_a_reader_that_never_reads_is_cut_off_and_costs_no_one_else() -> None:
    async with running(scripted([], then=9), max_model_len=1024, num_blocks=400, max_num_seqs=2) as engine:
        lagging = engine.add([1], SamplingParams(max_tokens=1000))
        reading = engine.add([2], SamplingParams(max_tokens=900))
        assert len(joined(await collect(reading))) == 900
        with pytest.raises(SlowReaderError):
            await collect(lagging)
        assert lagging.usage.completion_tokens <= 4096 // 8 + 1


async def test_shutdown_ends_what_runs_and_refuses_what_comes() -> None:
    async with running(scripted([], then=9), max_model_len=100_000, num_blocks=30_000) as engine:
        stream = engine.add([1], SamplingParams(max_tokens=90_000))
        await stream.get()
        await engine.shutdown()
        with pytest.raises(DrainingError):
            await collect(stream)
        assert not engine.ready
        assert engine.healthy
        with pytest.raises(DrainingError):
            engine.add([1], GREEDY)


async def test_a_lagging_reader_gets_merged_deltas() -> None:
    async with running(scripted(range(20, 60))) as engine:
        stream = engine.add([1], SamplingParams(max_tokens=30))
        await collect(engine.add([2], SamplingParams(max_tokens=31)))
        (delta,) = await stream.get()
        assert list(delta.token_ids) == list(range(20, 50))
        assert await stream.get() == []


async def test_a_stop_string_in_the_last_token_is_reported_as_a_stop() -> None:
    metrics = Metrics()
    async with running(scripted(pieces("abc")), text=True) as engine:
        engine.metrics = metrics
        (*_, last) = await collect(engine.add([1], SamplingParams(max_tokens=3, stop=("c",))))
    assert last.finish_reason is FinishReason.STOP
    assert 'request_success_total{engine="0",finished_reason="stop",model_name=""} 1.0' in metrics.render()[0].decode()


async def test_leaving_the_iteration_aborts() -> None:
    async with running(scripted([], then=9)) as engine:
        generator = engine.generate([1], SamplingParams(max_tokens=100))
        async for _delta in generator:
            break
        await generator.aclose()
        assert engine.stats().running == 0


async def test_the_same_tokens_with_little_memory() -> None:
    outputs = []
    for num_blocks in (200, 12):
        async with running(
            lambda p, o: 10 + (sum(p) * 31 + sum(o) * 7 + len(o)) % 50, num_blocks=num_blocks, max_model_len=40
        ) as engine:
            streams = [engine.add([i] * 9, SamplingParams(max_tokens=20)) for i in range(1, 7)]
            outputs.append([joined(await collect(s)) for s in streams])
            preemptions = engine.stats().preemptions
    assert outputs[0] == outputs[1]
    assert preemptions > 0


def pieces(*texts: str) -> list[int]:
    ids = []
    for text in texts:
        ids.extend(TOKENIZER.encode(text, add_special_tokens=False))
    return ids


async def test_A1_no_replacement_characters_in_the_middle() -> None:
    text = "a🎉b漢č…"
    ids = pieces(text)
    async with running(scripted(ids), text=True) as engine:
        deltas = await collect(engine.add([1], SamplingParams(max_tokens=len(ids))))
    assert len(ids) > len(text)
    assert "".join(d.text for d in deltas) == text
    assert all("\ufffd" not in d.text for d in deltas)


async def test_A2_an_end_inside_a_character_gives_one_fallback_character() -> None:
    ids = pieces("🎉")
    assert len(ids) > 1
    async with running(scripted(ids), text=True) as engine:
        deltas = await collect(engine.add([1], SamplingParams(max_tokens=1)))
    assert "".join(d.text for d in deltas) == "\ufffd"
    assert deltas[-1].finish_reason is FinishReason.LENGTH


async def test_A5_nothing_of_a_stop_string_is_sent() -> None:
    ids = pieces("abcDEFGHij")
    async with running(scripted(ids), text=True) as engine:
        deltas = await collect(engine.add([1], SamplingParams(max_tokens=10, stop=("DEFG",))))
        assert "".join(d.text for d in deltas) == "abc"
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, "DEFG")
        kept = SamplingParams(max_tokens=10, stop=("DEFG",), include_stop_str_in_output=True)
        assert "".join(d.text for d in await collect(engine.add([1], kept))) == "abcDEFG"


async def test_A6_a_held_back_tail_is_sent_at_the_end() -> None:
    ids = pieces("abZ")
    for script, params in (
        (scripted(ids), SamplingParams(max_tokens=3, stop=("ZZZZ",))),
        (scripted([*ids, EOS]), SamplingParams(max_tokens=9, stop=("ZZZZ",))),
    ):
        async with running(script, text=True) as engine:
            deltas = await collect(engine.add([1], params))
        assert "".join(d.text for d in deltas) == "abZ"


async def test_stop_strings_wait_for_min_tokens() -> None:
    async with running(scripted(pieces("abab")), text=True) as engine:
        params = SamplingParams(max_tokens=4, stop=("b",), min_tokens=2)
        assert "".join(d.text for d in await collect(engine.add([1], params))) == "aba"
