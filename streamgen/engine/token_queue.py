"""What one request's reader has not read yet. It merges while the reader lags, and it is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from streamgen.errors import StreamgenError
from streamgen.types import Delta, FinishReason, TokenIds, Usage

TOKEN_BYTES = 8
"""What a token id that waits for its reader is counted as."""


class _Gain:
    """One sequence's unread text and tokens."""

    __slots__ = ("finish_reason", "stop_reason", "texts", "token_ids")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None


class TokenQueue:
    """A RequestStream: written by the engine loop, read by one coroutine, both on the event loop.

    Every sequence ends in exactly one Delta with a finish reason, or the whole request in one exception.
    """

    def __init__(
        self,
        request_id: int,
        prompt_token_ids: TokenIds,
        num_sequences: int,
        *,
        max_bytes: int,
        on_abort: Callable[[], None],
    ) -> None:
        """Args:
        max_bytes: what may wait for the reader; `overflowing` tells when it is more.
        on_abort: called once, when the reader says that it has had enough.
        """
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.num_cached_tokens = 0
        self._max_bytes = max_bytes
        self._on_abort = on_abort
        self._gains: dict[int, _Gain] = {}
        self._num_bytes = 0
        self._num_unfinished = num_sequences
        self._completion_tokens = 0
        self._error: StreamgenError | None = None
        self._aborted = False
        self._reader: asyncio.Future[None] | None = None

    @property
    def overflowing(self) -> bool:
        """The reader lags past its bound."""
        return self._num_bytes > self._max_bytes

    @property
    def ended(self) -> bool:
        """Nothing more can come."""
        return self._num_unfinished == 0 or self._error is not None

    @property
    def usage(self) -> Usage:
        return Usage(len(self.prompt_token_ids), self._completion_tokens, self.num_cached_tokens)

    def put(
        self,
        index: int,
        text: str,
        token_ids: Sequence[int],
        finish_reason: FinishReason | None = None,
        stop_reason: int | str | None = None,
    ) -> None:
        """Add what sequence `index` gained."""
        assert not self.ended, "a stream has one end"
        gain = self._gains.get(index)
        if gain is None:
            gain = self._gains[index] = _Gain()
        if text:
            gain.texts.append(text)
            self._num_bytes += len(text) if text.isascii() else len(text.encode())
        gain.token_ids.extend(token_ids)
        self._num_bytes += TOKEN_BYTES * len(token_ids)
        if finish_reason is not None:
            assert gain.finish_reason is None
            gain.finish_reason = finish_reason
            gain.stop_reason = stop_reason
            self._num_unfinished -= 1
        self._wake()

    def fail(self, error: StreamgenError) -> None:
        """End the whole request by an error. What was not read yet is read first."""
        if not self.ended:
            self._error = error
            self._wake()

    async def get(self) -> list[Delta]:
        while (deltas := self.get_nowait()) is None:
            assert self._reader is None, "a stream has one reader"
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return deltas

    def get_nowait(self) -> list[Delta] | None:
        if self._gains:
            gains, self._gains = self._gains, {}
            self._num_bytes = 0
            deltas = []
            for index, gain in gains.items():
                self._completion_tokens += len(gain.token_ids)
                text = gain.texts[0] if len(gain.texts) == 1 else "".join(gain.texts)
                deltas.append(Delta(index, text, tuple(gain.token_ids), gain.finish_reason, gain.stop_reason))
            return deltas
        if self._error is not None:
            raise self._error
        return [] if self._num_unfinished == 0 else None

    def abort(self) -> None:
        if not self._aborted and not self.ended:
            self._aborted = True
            self._on_abort()

    def _wake(self) -> None:
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)
