"""A request that the engine has taken: one engine stream for each prompt, read as one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from streamgen.engine.client import EngineClient, RequestStream
from streamgen.errors import EngineError, StreamgenError
from streamgen.server.chunks import ChunkRenderer
from streamgen.server.prepare import Prepared
from streamgen.server.usage import total_usage
from streamgen.types import Delta, FinishReason, TokenIds, Usage


def start(engine: EngineClient, prepared: Prepared, *, tenant: str, correlation_id: str) -> list[RequestStream]:
    """Add every prompt, or none. Raises what `EngineClient.add` raises."""
    if prepared.score_only:
        return [EchoedPrompt(prompt, prepared.params.n) for prompt in prepared.prompts]
    streams: list[RequestStream] = []
    try:
        for prompt in prepared.prompts:
            streams.append(  # noqa: PERF401 - what was added before a refusal must be known
                engine.add(
                    prompt,
                    prepared.params_for(prompt),
                    priority=prepared.priority,
                    tenant=tenant,
                    correlation_id=correlation_id,
                )
            )
    except BaseException:
        for stream in streams:
            stream.abort()
        raise
    return streams


class EchoedPrompt:
    """A RequestStream that ends at once: a prompt given back, and nothing generated."""

    request_id = -1

    def __init__(self, prompt_token_ids: TokenIds, n: int) -> None:
        self.prompt_token_ids = prompt_token_ids
        self._deltas = [Delta(index=i, text="", token_ids=(), finish_reason=FinishReason.LENGTH) for i in range(n)]

    async def get(self) -> list[Delta]:
        return self.get_nowait()

    def get_nowait(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    @property
    def usage(self) -> Usage:
        return Usage(prompt_tokens=len(self.prompt_token_ids), completion_tokens=0)

    def abort(self) -> None:
        pass


class Generation:
    """Reads the streams of one request. One reader, on the event loop.

    `get` renders; whoever wants the Deltas themselves calls `read`. Cancelling either loses nothing.
    """

    def __init__(self, streams: Sequence[RequestStream], renderer: ChunkRenderer) -> None:
        self.renderer = renderer
        self._streams = list(streams)
        self._only = self._streams[0] if len(self._streams) == 1 else None
        self._reads: dict[asyncio.Task[list[Delta]], int] = {}
        self._unread = list(range(len(self._streams)))
        self._aborted = False
        self._reason: str | None = None

    async def get(self) -> list[bytes]:
        """Chunks since the last call, framed by the renderer; empty once all is said. Raises EngineError."""
        only = self._only
        while True:
            if only is not None:
                prompt, deltas = 0, await only.get()
            else:
                prompt, deltas = await self._read_any()
            if not deltas:
                return []
            self._note_ends(deltas)
            chunks = self.renderer.render(deltas, prompt, self.usage if self.renderer.continuous_usage else _NO_USAGE)
            if chunks:
                return chunks

    async def read(self) -> tuple[int, list[Delta]]:
        """A prompt's number and its news; no news once every prompt has ended. Raises EngineError."""
        if self._only is not None:
            prompt, deltas = 0, await self._only.get()
        else:
            prompt, deltas = await self._read_any()
        self._note_ends(deltas)
        return prompt, deltas

    async def _read_any(self) -> tuple[int, list[Delta]]:
        # The tasks outlive a cancelled call, so that what they have read is there for the next one.
        while True:
            for prompt in self._unread:
                self._reads[asyncio.ensure_future(self._streams[prompt].get())] = prompt
            self._unread = []
            if not self._reads:
                return 0, []
            await asyncio.wait(self._reads, return_when=asyncio.FIRST_COMPLETED)
            task = next(task for task in self._reads if task.done())
            prompt = self._reads.pop(task)
            deltas = task.result()
            if deltas:
                self._unread.append(prompt)
                return prompt, deltas

    def _note_ends(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            reason = delta.finish_reason
            if reason is None:
                continue
            if reason is FinishReason.ERROR:
                raise EngineError("The server failed to generate this answer.")
            if self._reason is None or reason is FinishReason.ABORT:
                self._reason = reason.value

    def abort(self) -> None:
        """Stop generating. The rest, down to the last Deltas, can still be read. Idempotent."""
        if not self._aborted:
            self._aborted = True
            for stream in self._streams:
                stream.abort()

    async def close(self) -> None:
        """Whatever happened, leave nothing running: abort what has not ended, and end the reads."""
        self.abort()
        reads, self._reads = list(self._reads), {}
        for task in reads:
            task.cancel()
        for task in reads:
            with contextlib.suppress(asyncio.CancelledError, StreamgenError):
                await task

    @property
    def usage(self) -> Usage:
        """Counts up to what was read so far, all prompts together."""
        return self._only.usage if self._only is not None else total_usage(stream.usage for stream in self._streams)

    @property
    def finish_reason(self) -> str:
        """Why it ended: "abort" if any choice was aborted, else the reason of the choice that ended first."""
        return self._reason or FinishReason.ABORT.value


_NO_USAGE = Usage(prompt_tokens=0, completion_tokens=0)
