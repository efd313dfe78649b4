"""An EngineClient without an engine: says what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from streamgen.engine.client import EngineStats
from streamgen.errors import ContextLengthError, StreamgenError
from streamgen.types import Delta, FinishReason, SamplingParams, TokenIds, Usage


class FakeStream:
    """A RequestStream that a test fills: `push` is one step's news, `end` the last of it."""

    def __init__(
        self, request_id: int, prompt: Sequence[int], params: SamplingParams, asked: dict[str, object]
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids: TokenIds = tuple(prompt)
        self.params = params
        self.asked = asked
        self.aborted = asyncio.Event()
        self.cached_tokens = 0
        self._news: deque[list[Delta]] = deque()
        self._arrived = asyncio.Event()
        self._unfinished = set(range(params.n))
        self._error: StreamgenError | None = None
        self._completion_tokens = 0

    def push(self, *deltas: Delta) -> None:
        self._news.append(list(deltas))
        self._arrived.set()

    def say(self, *texts: str, index: int = 0) -> None:
        """One Delta, of one token, for each text."""
        for text in texts:
            self.push(Delta(index=index, text=text, token_ids=(len(text),)))

    def end(
        self, reason: FinishReason, *, index: int = 0, text: str = "", stop_reason: int | str | None = None
    ) -> None:
        self.push(Delta(index=index, text=text, token_ids=(), finish_reason=reason, stop_reason=stop_reason))

    def fail(self, error: StreamgenError) -> None:
        self._error = error
        self._arrived.set()

    async def get(self) -> list[Delta]:
        while (deltas := self.get_nowait()) is None:
            self._arrived.clear()
            await self._arrived.wait()
        return deltas

    def get_nowait(self) -> list[Delta] | None:
        if self._news:
            deltas = self._news.popleft()
            for delta in deltas:
                self._completion_tokens += len(delta.token_ids)
                if delta.finish_reason is not None:
                    self._unfinished.discard(delta.index)
            return deltas
        if self._error is not None:
            raise self._error
        if not self._unfinished:
            return []
        if self.aborted.is_set():
            self.push(
                *(Delta(index=i, text="", token_ids=(), finish_reason=FinishReason.ABORT) for i in self._unfinished)
            )
            return self.get_nowait()
        return None

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self.prompt_token_ids),
            completion_tokens=self._completion_tokens,
            cached_tokens=self.cached_tokens,
        )

    def abort(self) -> None:
        if self._unfinished:
            self.aborted.set()
        self._arrived.set()


class FakeEngine:
    """By default every sequence says `texts`, a token each, and ends for `reason`; with `manual`, the test says it."""

    def __init__(self, *, max_model_len: int = 64) -> None:
        self.max_model_len = max_model_len
        self.texts: Sequence[str] = ("Paris", " is", " it.")
        self.reason = FinishReason.STOP
        self.stop_reason: int | str | None = None
        self.manual = False
        self.refusal: StreamgenError | None = None
        self.refuse_after = 0
        self.ready = True
        self.healthy = True
        self.streams: list[FakeStream] = []
        self._added: asyncio.Queue[FakeStream] = asyncio.Queue()

    def add(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        tenant: str = "",
        correlation_id: str = "",
    ) -> FakeStream:
        if self.refusal is not None and len(self.streams) >= self.refuse_after:
            raise self.refusal
        if len(prompt_token_ids) >= self.max_model_len:
            raise ContextLengthError(self.max_model_len, len(prompt_token_ids), None, "prompt")
        asked = {"priority": priority, "tenant": tenant, "correlation_id": correlation_id}
        stream = FakeStream(len(self.streams) + 1, prompt_token_ids, params, asked)
        if not self.manual:
            for text in self.texts:
                stream.push(*(Delta(index=i, text=text, token_ids=(len(text),)) for i in range(params.n)))
            for i in range(params.n):
                stream.end(self.reason, index=i, stop_reason=self.stop_reason)
        self.streams.append(stream)
        self._added.put_nowait(stream)
        return stream

    async def next_stream(self) -> FakeStream:
        """The next request that is added."""
        return await self._added.get()

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self.streams),
            waiting=0,
            kv_cache_usage=0.25,
            prompt_tokens=0,
            generation_tokens=0,
            preemptions=0,
            prefix_cache_queries=0,
            prefix_cache_hits=0,
            steps=0,
        )
