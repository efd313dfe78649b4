"""From sampled token ids to the text that a stream gains, and the stop strings that end it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamgen.text.stops import StopStrings
from streamgen.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamgen.engine.token_queue import TokenQueue
    from streamgen.scheduling.request import Request
    from streamgen.scheduling.scheduler import Progress
    from streamgen.text.detokenizer import IncrementalDetokenizer
    from streamgen.text.tokenizer import Tokenizer
    from streamgen.types import SamplingParams


@dataclass(slots=True)
class SequenceOutput:
    """One running sequence as its reader sees it."""

    request: Request
    queue: TokenQueue
    index: int
    detokenizer: IncrementalDetokenizer | None
    stops: StopStrings | None
    min_tokens: int
    include_stop: bool
    num_tokens: int = 0
    last_token_at: float | None = None
    """When its newest token was told, by the engine's clock."""

    def push(self, progress: Progress) -> FinishReason | None:
        """Pass a step's gain on. Why the sequence has ended by it, if it has: a stop string shows only in the text."""
        token_ids, reason = progress.token_ids, progress.finish_reason
        stop_reason: int | str | None = progress.stop_token_id
        # The token that ended it is counted, but it is not text, unless it was asked for.
        by_token = reason is FinishReason.STOP and not (self.include_stop and stop_reason is not None)
        text, matched = self._text(token_ids[:-1] if by_token else token_ids, last=reason is not None)
        if matched is not None:
            reason, stop_reason = FinishReason.STOP, matched
        self.queue.put(self.index, text, token_ids, reason, stop_reason)
        return reason

    def end(self, reason: FinishReason) -> None:
        """End it from outside, such as by an abort: what was held back is sent, since no stop string will come."""
        text, _ = self._text((), last=True)
        self.queue.put(self.index, text, (), reason)

    def _text(self, token_ids: Sequence[int], *, last: bool) -> tuple[str, str | None]:
        if self.detokenizer is None:
            return "", None
        emitted = []
        for token_id in token_ids:
            text = self.detokenizer.push(token_id)
            self.num_tokens += 1
            if self.stops is None or self.num_tokens <= self.min_tokens:
                emitted.append(text)
                continue
            if text:
                text, matched = self.stops.push(text)
                emitted.append(text)
                if matched is not None:
                    return "".join(emitted), matched
        if last:
            text, matched = self.detokenizer.flush(), None
            if self.stops is not None:
                text, matched = self.stops.push(text) if text else ("", None)
                if matched is None:
                    text += self.stops.flush()
            emitted.append(text)
            return "".join(emitted), matched
        return emitted[0] if len(emitted) == 1 else "".join(emitted), None


class OutputProcessor:
    """All running sequences' outputs, by request id. Owned by the event loop."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        """Without a tokenizer, streams carry token ids and no text."""
        self._tokenizer = tokenizer
        self._outputs: dict[int, SequenceOutput] = {}

    def add(self, request: Request, queue: TokenQueue, index: int, params: SamplingParams) -> None:
        self._outputs[request.request_id] = SequenceOutput(
            request,
            queue,
            index,
            None if self._tokenizer is None else self._tokenizer.detokenizer(request.prompt_token_ids),
            StopStrings(params.stop, include=params.include_stop_str_in_output) if params.stop else None,
            params.min_tokens,
            params.include_stop_str_in_output,
        )

    def get(self, request_id: int) -> SequenceOutput | None:
        """The output of a request that its reader has not seen the end of."""
        return self._outputs.get(request_id)

    def pop(self, request_id: int) -> SequenceOutput | None:
        return self._outputs.pop(request_id, None)

    def __len__(self) -> int:
        return len(self._outputs)
