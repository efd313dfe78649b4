"""The seam to whatever executes plans: a thread of this process, or ranks elsewhere."""

from __future__ import annotations

from asyncio import Future
from typing import Protocol

from streamgen.types import StepPlan, StepResult


class Executor(Protocol):
    """Executes plans in order. A plan and its result could cross a process: they serialize."""

    depth: int
    """Steps that may be in flight."""

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        """Hand a plan over. The future never raises: a step that failed has a result that says so.

        The executor logs a failure, once, for it has the traceback. Steps that fail because of an earlier one are not
        logged.
        """

    def flush(self) -> None:
        """No plan follows before a result comes: do not wait for one to collect the steps in flight."""

    def close(self) -> None: ...
