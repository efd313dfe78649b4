"""The thread that owns the device: it launches plans and collects results, and touches nothing else."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

import msgspec

from streamgen.errors import EngineDeadError
from streamgen.runtime.runner import PendingStep, Runner
from streamgen.types import StepPlan, StepResult

T = TypeVar("T")
log = logging.getLogger(__name__)


def failure(step: int, error: str, *, fatal: bool = False) -> StepResult:
    return StepResult(step, (), (), error=error, fatal=fatal)


class _Launched(NamedTuple):
    number: int
    pending: PendingStep
    future: asyncio.Future[StepResult]
    launched_at: float


class GpuThread:
    """An Executor on a thread of this process. All methods but the thread's own are the event loop's.

    The thread launches step N+1 before it waits for step N, so that the device always has work queued. A step that
    raised voids everything behind it, until a full plan comes and the runner starts from nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, depth: int = 2) -> None:
        self.depth = depth
        self._loop = loop
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._runner: Runner | None = None
        self._launched: deque[_Launched] = deque()
        self._void = False
        self._thread = threading.Thread(target=self._run, name="streamgen-gpu", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run something on the thread, such as building the runner there. Its exception becomes the future's."""
        future: asyncio.Future[T] = self._loop.create_future()

        def task() -> None:
            try:
                value = function()
            except BaseException as error:  # noqa: BLE001 - it crosses to the loop, which raises it there
                self._post(_set_exception, future, error)
            else:
                self._post(_set_result, future, value)

        self._inbox.put(task)
        return future

    def attach(self, runner: Runner) -> None:
        """Take the runner that plans go to. Before the first `submit`."""
        self._inbox.put(lambda: setattr(self, "_runner", runner))

    def submit(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        future: asyncio.Future[StepResult] = self._loop.create_future()
        self._inbox.put(lambda: self._launch(plan, future))
        return future

    def flush(self) -> None:
        self._inbox.put(self._collect_all)

    def close(self, timeout: float = 5.0) -> None:
        """End the thread, after the steps it has. A thread that hangs in the device is left behind."""
        self._inbox.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (task := self._inbox.get()) is not None:
            task()
            del task
        self._collect_all()
        if self._runner is not None:
            self._runner.close()

    def _launch(self, plan: StepPlan, future: asyncio.Future[StepResult]) -> None:
        assert self._runner is not None
        launched_at = time.perf_counter()
        try:
            if plan.full and self._void:
                _reset(self._runner)
                self._void = False
            if self._void:
                self._deliver(future, failure(plan.step, "an earlier step failed"))
                return
            pending = self._runner.launch(plan)
        except Exception as error:  # noqa: BLE001 - whatever a step raises becomes its result
            # Steps before this one are sound, and results keep their order.
            while self._launched:
                self._collect()
            self._fail(plan.step, future, error)
            return
        self._launched.append(_Launched(plan.step, pending, future, launched_at))
        while self._launched and (len(self._launched) >= self.depth or self._launched[0].pending.ready()):
            self._collect()

    def _collect_all(self) -> None:
        # A plan that has come meanwhile is launched first: waiting can wait.
        while self._launched and self._inbox.empty():
            self._collect()

    def _collect(self) -> None:
        step = self._launched.popleft()
        try:
            result = step.pending.wait()
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(step.number, step.future, error)
            return
        if self._void:
            result = failure(step.number, "an earlier step failed")
        else:
            result = msgspec.structs.replace(result, seconds=time.perf_counter() - step.launched_at)
        self._deliver(step.future, result)

    def _fail(self, step: int, future: asyncio.Future[StepResult], error: Exception) -> None:
        log.error("step_failed", exc_info=error)
        self._void = True
        fatal = isinstance(error, EngineDeadError)
        self._deliver(future, failure(step, f"{type(error).__name__}: {error}", fatal=fatal))

    def _deliver(self, future: asyncio.Future[StepResult], result: StepResult) -> None:
        self._post(_set_result, future, result)

    def _post(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed: nobody waits any more
            log.debug("result_without_loop")


def _reset(runner: Runner) -> None:
    """Raises EngineDeadError: a device that cannot even start from nothing is lost."""
    try:
        runner.reset()
    except Exception as error:
        raise EngineDeadError(f"The device cannot be reset: {type(error).__name__}: {error}") from error


def _set_result(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _set_exception(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
