"""Notices a step that does not come back. A device that hangs raises nothing, so somebody has to look at the clock."""

from __future__ import annotations

from dataclasses import dataclass

from streamgen.types import StepPlan

STEP_SECONDS = 60.0
"""What a step may take. The slowest that are known, long prompts on a CPU, take a few seconds."""
FIRST_STEP_SECONDS = 300.0
"""What the first step may take: a device may still load or compile kernels in it."""


@dataclass(frozen=True, slots=True)
class StepInFlight:
    plan: StepPlan
    since: float
    """When the executor can have begun with it: it was handed over, and the step before had come back."""


class Watchdog:
    """Says of the oldest step in flight whether it hangs, and tells it once. The clock is the caller's."""

    def __init__(self, *, limit: float = STEP_SECONDS, first_limit: float = FIRST_STEP_SECONDS) -> None:
        self._limit = limit
        self._first_limit = first_limit
        self._told: int | None = None

    def hangs(self, oldest: StepInFlight | None, now: float) -> bool:
        """Whether this step has been computed for longer than a step may take."""
        if oldest is None:
            return False
        return now - oldest.since >= (self._limit if oldest.plan.step else max(self._limit, self._first_limit))

    def is_news(self, oldest: StepInFlight | None, now: float) -> bool:
        """Whether it hangs and nobody has been told yet."""
        if oldest is None or oldest.plan.step == self._told or not self.hangs(oldest, now):
            return False
        self._told = oldest.plan.step
        return True

    def came_back(self, plan: StepPlan) -> bool:
        """Whether this step, which has come back after all, is one that was told of."""
        return plan.step == self._told
