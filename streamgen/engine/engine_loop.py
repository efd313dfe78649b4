"""The engine step coroutine: plan, hand over, reconcile, and only then tell the streams."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from streamgen.engine.executor import Executor
from streamgen.engine.watchdog import StepInFlight
from streamgen.scheduling.scheduler import Progress, Scheduler
from streamgen.types import StepPlan, StepResult

SLICE = 64
"""Streams that are told of their tokens before the loop looks whether the next result has come."""

Publish: TypeAlias = Callable[[Sequence[Progress]], None]
OnStep: TypeAlias = Callable[[StepPlan, StepResult, float], None]
"""(plan, result, when the plan was handed over)"""


class StepFailedError(Exception):
    """A step came back with an error that the device cannot recover from."""


class EngineLoop:
    """Keeps `executor.depth` steps in flight as long as there is anything to compute.

    When a result comes, the next step is planned and handed over before anybody is told of the last one: the device
    never waits for a socket. Owned by the event loop.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        publish: Publish,
        on_step: OnStep | None = None,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._publish = publish
        self._on_step = on_step
        self._clock = clock
        self._in_flight: deque[tuple[StepPlan, asyncio.Future[StepResult], float]] = deque()
        self._untold: deque[Progress] = deque()
        self._wakeup = asyncio.Event()
        self._last_result_at = -math.inf
        self.num_steps = 0

    @property
    def oldest_step(self) -> StepInFlight | None:
        """The oldest step whose result has not come; None if there is none."""
        for plan, future, launched_at in self._in_flight:
            if not future.done():
                return StepInFlight(plan, max(launched_at, self._last_result_at))
        return None

    def wake(self) -> None:
        """There may be something new to plan."""
        self._wakeup.set()

    async def run(self) -> None:
        """Step until cancelled. Raises StepFailedError when the device is lost."""
        while True:
            self._wakeup.clear()
            # A result is left for later only if the streams have not been told of the last ones: they set the pace.
            if self._in_flight and self._in_flight[0][1].done() and len(self._untold) <= 4 * SLICE:
                self._reconcile()
            self._launch()
            if self._untold:
                self._tell()
                await asyncio.sleep(0)
            elif not (self._in_flight and self._in_flight[0][1].done()):
                await self._wakeup.wait()

    def _launch(self) -> None:
        while len(self._in_flight) < self._executor.depth:
            plan = self._scheduler.schedule()
            if plan is None:
                if self._in_flight:
                    self._executor.flush()
                return
            future = self._executor.submit(plan)
            future.add_done_callback(self._result_came)
            self._in_flight.append((plan, future, self._clock()))

    def _reconcile(self) -> None:
        plan, future, launched_at = self._in_flight.popleft()
        result = future.result()
        self.num_steps += 1
        progress = self._scheduler.update(result)
        if self._on_step is not None:
            self._on_step(plan, result, launched_at)
        if result.fatal:
            # Whoever got its last token by an earlier step has an answer that is whole.
            while self._untold:
                self._tell()
            raise StepFailedError(result.error)
        self._untold.extend(progress)

    def _tell(self) -> None:
        count = min(SLICE, len(self._untold))
        self._publish([self._untold.popleft() for _ in range(count)])

    def _result_came(self, _future: asyncio.Future[StepResult]) -> None:
        self._last_result_at = self._clock()
        self._wakeup.set()
