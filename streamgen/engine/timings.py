"""When things happened to a request, and who is told of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class EngineMetrics(Protocol):
    """What the engine reports; `observability.metrics.Metrics` is one. Times are in seconds."""

    def first_token(self, seconds: float) -> None: ...
    def step(self, num_prompt_tokens: int, num_generation_tokens: int) -> None: ...
    def gaps(self, gaps: Iterable[float]) -> None: ...
    def request_corrupted(self) -> None: ...
    def request_finished(
        self,
        reason: str,
        *,
        e2e: float,
        queue: float | None = None,
        prefill: float | None = None,
        decode: float | None = None,
        prompt_tokens: int,
        generation_tokens: int,
        longest: int | None = None,
        n: int = 1,
        max_tokens: int | None = None,
    ) -> None: ...


@dataclass(slots=True)
class StreamTimings:
    """Moments of one stream, by the engine's clock; None for what has not happened."""

    arrival: float
    prompt_tokens: int
    n: int
    max_tokens: int | None
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    generation_tokens: int = 0
    longest: int = 0

    def report(self, metrics: EngineMetrics, reason: str, now: float) -> None:
        """The stream is over."""
        prefill = decode = None
        if self.scheduled is not None and self.first_token is not None and self.last_token is not None:
            prefill = self.first_token - self.scheduled
            decode = self.last_token - self.first_token
        metrics.request_finished(
            reason,
            e2e=now - self.arrival,
            queue=None if self.scheduled is None else self.scheduled - self.arrival,
            prefill=prefill,
            decode=decode,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            longest=self.longest,
            n=self.n,
            max_tokens=self.max_tokens,
        )
