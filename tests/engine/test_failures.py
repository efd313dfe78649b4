"""What becomes of requests, streams and the engine when a step raises, hangs, or loses the device."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest
import torch

from streamgen.errors import EngineDeadError, StepError
from streamgen.runtime.fake import FakeModelRunner, FakePendingStep, scripted
from streamgen.scheduling.scheduler import Scheduler
from streamgen.types import FinishReason, SamplingParams, StepPlan
from tests.engine.world import GREEDY, collect, joined, running

ILLEGAL_ACCESS = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later"


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.getMessage().split()[0] == name]


def raising(error: BaseException, step: int = 3) -> Callable[[StepPlan], None]:
    def fault(plan: StepPlan) -> None:
        if plan.step == step:
            raise error

    return fault


async def test_an_exception_in_a_step_ends_its_requests_and_no_others() -> None:
    def fault(plan: StepPlan) -> None:
        if any(row.num_tokens == 13 for row in plan.rows):
            raise RuntimeError("acted out")

    async with running(scripted([], then=9), before_step=fault, max_num_seqs=1) as engine:
        doomed = engine.add([2] * 13, SamplingParams(max_tokens=5))
        waiting = engine.add([3] * 3, SamplingParams(max_tokens=5))
        with pytest.raises(StepError):
            await collect(doomed)
        assert joined(await collect(waiting)) == [9] * 5
        assert engine.healthy


async def test_requests_in_flight_behind_a_failed_step_are_computed_anew() -> None:
    failed: list[int] = []

    def fault(plan: StepPlan) -> None:
        if len(plan.rows) == 1 and plan.rows[0].num_tokens == 13 and not failed:
            failed.append(plan.step)
            raise RuntimeError("acted out")

    async with running(scripted(range(20, 60)), before_step=fault) as engine:
        doomed = engine.add([2] * 13, SamplingParams(max_tokens=5))
        await asyncio.sleep(0)
        others = [engine.add([i] * 3, SamplingParams(max_tokens=9)) for i in (3, 4, 5)]
        with pytest.raises(StepError):
            await collect(doomed)
        for other in others:
            assert joined(await collect(other)) == list(range(20, 29))


async def test_a_failed_step_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """Nor are those launched behind it, which fail with it, worth a line of their own."""
    async with running(scripted([], then=9), before_step=raising(RuntimeError("acted out"))) as engine:
        with pytest.raises(StepError):
            await collect(engine.add([1], GREEDY))
        assert joined(await collect(engine.add([2], GREEDY))) == [9] * 8
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage().startswith("step_failed step=3 requests=1 tokens=1 fatal=False")
    assert record.exc_info is not None


async def test_a_step_that_fails_when_it_is_waited_for_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps in flight at one fault: both waits raise, as after an asynchronous error."""
    wait = FakePendingStep.wait

    def fails(step: FakePendingStep) -> object:
        if step.plan.step in {3, 4}:
            raise RuntimeError("acted out")
        return wait(step)

    monkeypatch.setattr(FakePendingStep, "wait", fails)
    async with running(scripted([], then=9)) as engine:
        with pytest.raises(StepError):
            await collect(engine.add([1], GREEDY))
        assert engine.healthy
    assert len(caplog.records) == len(events(caplog, "step_failed")) == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError(ILLEGAL_ACCESS, 700),
        RuntimeError(ILLEGAL_ACCESS),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        EngineDeadError("the device is gone"),
        SystemExit(),
    ],
    ids=["accelerator", "runtime", "triton", "own", "exit"],
)
async def test_C6_a_lost_device_ends_every_stream_and_the_engine(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """The runner could be reset all the same: what the error says is enough."""
    deaths: list[str] = []
    async with running(scripted([], then=9), before_step=raising(error), max_num_seqs=2) as engine:
        engine.on_death = deaths.append
        for stream in [engine.add([1], SamplingParams(max_tokens=50)) for _ in range(3)]:
            with pytest.raises(EngineDeadError):
                await collect(stream)
        await asyncio.sleep(0)
        assert not engine.healthy
        assert not engine.ready
        assert deaths == [engine.failure]
        assert type(error).__name__ in deaths[0]
        assert "\n" not in deaths[0]
        with pytest.raises(EngineDeadError):
            engine.add([1], GREEDY)
    assert len(events(caplog, "step_failed")) == len(events(caplog, "engine_died")) == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        torch.AcceleratorError("CUDA error: out of memory", 2),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
async def test_memory_that_runs_out_fails_one_step_and_not_the_engine(error: Exception) -> None:
    async with running(scripted([], then=9), before_step=raising(error)) as engine:
        with pytest.raises(StepError):
            await collect(engine.add([1], GREEDY))
        assert engine.healthy
        assert joined(await collect(engine.add([2], GREEDY))) == [9] * 8


async def test_a_device_that_cannot_be_reset_is_lost_and_that_shows_at_once() -> None:
    """The fault itself does not say that the device is gone; starting it from nothing shows it, with nobody waiting."""

    def reset() -> None:
        raise RuntimeError("the device answers no more")

    async with running(scripted([], then=9), before_step=raising(RuntimeError("acted out"))) as engine:
        engine._runner.reset = reset
        with pytest.raises(EngineDeadError):
            await collect(engine.add([1], SamplingParams(max_tokens=50)))
        assert "acted out" in engine.failure
        assert "answers no more" in engine.failure


async def test_a_lost_device_that_shows_when_a_step_is_asked_whether_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An event of a lost context raises when it is queried, and then when it is waited for."""

    def lost(_step: FakePendingStep) -> object:
        raise torch.AcceleratorError(ILLEGAL_ACCESS, 700)

    monkeypatch.setattr(FakePendingStep, "ready", lost)
    monkeypatch.setattr(FakePendingStep, "wait", lost)
    async with running(scripted([], then=9)) as engine:
        with pytest.raises(EngineDeadError):
            await collect(engine.add([1], GREEDY))
        assert not engine.healthy


async def test_an_answer_that_was_whole_before_the_device_was_lost_stays_whole() -> None:
    async with running(scripted([], then=9), before_step=raising(RuntimeError(ILLEGAL_ACCESS), step=2)) as engine:
        short = engine.add([1], SamplingParams(max_tokens=2))
        long = engine.add([2], SamplingParams(max_tokens=50))
        assert joined(await collect(short)) == [9, 9]
        with pytest.raises(EngineDeadError):
            await collect(long)


async def test_every_stream_is_told_of_the_end_even_if_the_scheduler_is_what_broke(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("acted out")

    deaths: list[str] = []
    async with running(scripted([], then=9)) as engine:
        engine.on_death = deaths.append
        streams = [engine.add([1], GREEDY) for _ in range(3)]
        engine.scheduler.schedule = engine.scheduler.finish = broken
        for stream in streams:
            with pytest.raises(EngineDeadError):
                await collect(stream)
        assert deaths == ["AssertionError: acted out"]
        for request in list(engine.scheduler.requests.values()):
            Scheduler.finish(engine.scheduler, request, FinishReason.ERROR)
    assert len(events(caplog, "engine_loop_failed")) == 1


class Hanging:
    """A step whose launch hangs until it is released, so that the one before it is not collected; and a clock."""

    def __init__(self, step: int) -> None:
        self.now = 0.0
        self.step = step
        self.hung = asyncio.Event()
        self._release = threading.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self, plan: StepPlan) -> None:
        if plan.step == self.step:
            self._loop.call_soon_threadsafe(self.hung.set)
            self._release.wait(20)

    def clock(self) -> float:
        return self.now

    def release(self) -> None:
        self._release.set()


async def looks(count: int = 3) -> None:
    """Let the watchdog, which here looks at each turn of the loop, look some times."""
    for _ in range(3 * count):
        await asyncio.sleep(0)


async def test_C6_a_step_that_hangs_is_unhealthy_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    hang = Hanging(step=2)
    async with running(
        scripted([], then=9),
        before_step=hang,
        clock=hang.clock,
        options={"watch_interval": 0.0, "step_timeout": 60.0},
        max_num_seqs=2,
    ) as engine:
        streams = [engine.add([1], GREEDY) for _ in range(3)]
        await hang.hung.wait()
        hang.now = 59.0
        await looks()
        assert engine.healthy
        assert not events(caplog, "step_hangs")
        hang.now = 61.0
        await looks()
        assert not engine.healthy
        assert engine.failure == "Step 1 has not come back for 61 s."
        hang.now = 1000.0
        await looks()
        (record,) = events(caplog, "step_hangs")
        first, second, _ = (stream.request_id for stream in streams)
        expected = f"step=1 seconds=61.0 rows=2 tokens=2 requests=[{first}, {second}] waiting=1"
        assert record.getMessage() == f"step_hangs {expected}"
        hang.release()
        for stream in streams:
            assert len(joined(await collect(stream))) == 8
        assert engine.healthy
    assert len(events(caplog, "step_came_back")) == 1


async def test_the_first_step_may_take_longer() -> None:
    hang = Hanging(step=0)
    options = {"step_timeout": 60.0, "first_step_timeout": 300.0}
    async with running(scripted([], then=9), before_step=hang, clock=hang.clock, options=options) as engine:
        stream = engine.add([1], GREEDY)
        await hang.hung.wait()
        hang.now = 299.0
        assert engine.healthy
        hang.now = 301.0
        assert not engine.healthy
        hang.release()
        await collect(stream)


async def test_a_steps_time_begins_when_the_one_before_it_has_come_back() -> None:
    """Two steps of 50 s are in flight at once: neither takes longer than it may."""
    hang = Hanging(step=2)
    async with running(
        scripted([], then=9), before_step=hang, clock=hang.clock, options={"step_timeout": 60.0}
    ) as engine:
        stream = engine.add([1], GREEDY)
        await hang.hung.wait()
        hang.now = 50.0
        hang.step = 4
        hang.hung.clear()
        release, hang._release = hang._release, threading.Event()
        release.set()
        await hang.hung.wait()
        await looks()
        hang.now = 100.0
        assert engine.healthy
        hang.now = 111.0
        assert not engine.healthy
        hang.release()
        await collect(stream)


async def test_a_runner_that_cannot_be_closed_does_not_keep_the_engine_from_ending(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close(_runner: FakeModelRunner) -> None:
        raise RuntimeError(ILLEGAL_ACCESS)

    monkeypatch.setattr(FakeModelRunner, "close", close)
    async with running(scripted([], then=9)) as engine:
        assert joined(await collect(engine.add([1], GREEDY))) == [9] * 8
    assert len(events(caplog, "runner_close_failed")) == 1
