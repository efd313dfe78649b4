"""What a front end may ask of an engine: add a request, read its deltas, abort it, look at its state.

`AsyncEngine` is the engine in this process; another process's would have the same face.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from streamgen.types import Delta, SamplingParams, TokenIds, Usage


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A glance at the engine, cheap enough for a panel that asks every second."""

    running: int
    waiting: int
    kv_cache_usage: float
    """0 to 1: part of the KV pool's blocks that requests hold."""
    prompt_tokens: int
    """Prompt tokens computed since start."""
    generation_tokens: int
    """Tokens generated since start."""
    preemptions: int
    prefix_cache_queries: int
    """Prompt tokens that were looked up in the prefix cache."""
    prefix_cache_hits: int
    steps: int


class RequestStream(Protocol):
    """The reader's end of one request's token queue. One reader, on the event loop."""

    request_id: int
    prompt_token_ids: TokenIds

    async def get(self) -> list[Delta]:
        """Wait for news, and take all there is: one Delta a sequence at most, merged if the reader lagged.

        Returns an empty list once every sequence has ended. Raises EngineError if the request failed.
        """

    def get_nowait(self) -> list[Delta] | None:
        """What `get` would return now, or None if it would wait."""

    @property
    def usage(self) -> Usage:
        """Counts up to what was read so far."""

    def abort(self) -> None:
        """The reader is gone or has had enough. Idempotent; the request is in no plan made afterwards.

        A reader that goes on reading gets a last Delta with finish_reason ABORT for each unfinished sequence.
        """


class EngineClient(Protocol):
    max_model_len: int

    def add(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        tenant: str = "",
        correlation_id: str = "",
    ) -> RequestStream:
        """Admit a request. Raises, before anything was queued: InvalidRequestError, ContextLengthError, QueueFullError,
        DrainingError, EngineDeadError.
        """

    def stats(self) -> EngineStats: ...

    @property
    def ready(self) -> bool:
        """Loaded, and taking requests."""

    @property
    def healthy(self) -> bool:
        """Alive and stepping: false once the engine died, or a step has hung past the watchdog's limit."""

    @property
    def failure(self) -> str | None:
        """Why it is not healthy; None while it is."""
