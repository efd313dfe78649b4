"""The seam between an executor and whatever computes steps: the real ModelRunner, or a fake one in tests."""

from __future__ import annotations

from typing import Protocol

from streamgen.types import StepPlan, StepResult


class PendingStep(Protocol):
    """A launched step whose sampled ids may not have reached the host yet."""

    def ready(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self) -> StepResult:
        """Block, without holding the GIL, until the ids are here."""


class Runner(Protocol):
    """Computes steps in the order of their launch. Called from one thread only, the GPU thread."""

    def launch(self, plan: StepPlan) -> PendingStep:
        """Start a step. Must not wait for an earlier one: that is what keeps two in flight."""

    def reset(self) -> None:
        """Drop all state of the persistent batch after a failed step; the next plan is a full one.

        Raises whatever shows that the device cannot be used any more: the engine then ends.
        """

    def close(self) -> None:
        """Give the device back."""
