"""The thread that owns the device: it launches plans and collects results, and touches nothing else."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

import msgspec

from streamgen.engine.device_errors import described, device_is_lost
from streamgen.engine.logger import get_logger
from streamgen.errors import EngineDeadError
from streamgen.runtime.runner import PendingStep, Runner
from streamgen.types import StepPlan, StepResult

T = TypeVar("T")
log = get_logger(__name__)


def failure(step: int, error: str, *, fatal: bool = False) -> StepResult:
    return StepResult(step, (), (), error=error, fatal=fatal)


class _Launched(NamedTuple):
    plan: StepPlan
    pending: PendingStep
    future: asyncio.Future[StepResult]
    launched_at: float


class GpuThread:
    """An Executor on a thread of this process. All methods but the thread's own are the event loop's.

    The thread launches step N+1 before it waits for step N, so that the device always has work queued. A step that
    raised voids everything behind it, until a full plan comes. The runner is made to start from nothing at once, and
    not when that plan comes: if the device is lost, those who wait shall know now.
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
            try:
                self._runner.close()
            except Exception:
                log.exception("runner_close_failed")

    def _launch(self, plan: StepPlan, future: asyncio.Future[StepResult]) -> None:
        assert self._runner is not None
        launched_at = time.perf_counter()
        if plan.full:
            self._void = False
        if self._void:
            self._deliver(future, failure(plan.step, "an earlier step failed"))
            return
        try:
            pending = self._runner.launch(plan)
        except BaseException as error:  # noqa: BLE001 - whatever a step raises becomes its result; the thread lives on
            # Steps before this one are sound, and results keep their order.
            while self._launched:
                self._collect()
            self._fail(plan, future, error)
            return
        self._launched.append(_Launched(plan, pending, future, launched_at))
        while self._launched and (len(self._launched) >= self.depth or _is_ready(self._launched[0].pending)):
            self._collect()

    def _collect_all(self) -> None:
        # A plan that has come meanwhile is launched first: waiting can wait.
        while self._launched and self._inbox.empty():
            self._collect()

    def _collect(self) -> None:
        step = self._launched.popleft()
        try:
            result = step.pending.wait()
        except BaseException as error:  # noqa: BLE001 - as above
            self._fail(step.plan, step.future, error)
            return
        if self._void:
            result = failure(step.plan.step, "an earlier step failed")
        else:
            result = msgspec.structs.replace(result, seconds=time.perf_counter() - step.launched_at)
        self._deliver(step.future, result)

    def _fail(self, plan: StepPlan, future: asyncio.Future[StepResult], error: BaseException) -> None:
        if self._void and not _is_fatal(error):
            # It was launched behind a step that failed, and what went wrong has been logged with that one.
            self._deliver(future, failure(plan.step, "an earlier step failed"))
            return
        self._void = True
        lost = described(error) if _is_fatal(error) else self._why_lost(error)
        log.error(
            "step_failed",
            step=plan.step,
            requests=len(plan.rows),
            tokens=plan.num_tokens,
            fatal=lost is not None,
            reason=lost or described(error),
            exc_info=error,
        )
        self._deliver(future, failure(plan.step, lost or described(error), fatal=lost is not None))

    def _why_lost(self, error: BaseException) -> str | None:
        """Why the device cannot go on after an error that does not say so; None if it can."""
        assert self._runner is not None
        try:
            # A device that cannot even start from nothing is lost, whatever the step itself raised.
            self._runner.reset()
        except Exception as another:  # noqa: BLE001 - it becomes the step's result
            return f"{described(error)}; and the device cannot be reset: {described(another)}"
        return None

    def _deliver(self, future: asyncio.Future[StepResult], result: StepResult) -> None:
        self._post(_set_result, future, result)

    def _post(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed: nobody waits any more
            log.debug("result_without_loop")


def _is_fatal(error: BaseException) -> bool:
    """Whether an error says by itself that there is no going on: the device is lost, or the thread is to end."""
    return isinstance(error, EngineDeadError) or not isinstance(error, Exception) or device_is_lost(error)


def _is_ready(pending: PendingStep) -> bool:
    """Whether to collect a step now. One that cannot even be asked is collected, and says then what is wrong."""
    try:
        return pending.ready()
    except Exception:  # noqa: BLE001 - `wait` raises it again, for the step's result
        return True


def _set_result(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _set_exception(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
