"""The vocabulary of the engine: what a request asks for, what a step is told to do and what comes back of it.

Everything here is frozen and holds plain numbers and strings, never tensors, so that a plan and its result can cross
a thread, a process or a network alike: `encode_plan`/`decode_plan` and `encode_result`/`decode_result` turn them
into bytes and back. msgspec gives these records construction costs below a dataclass's, and the codec for nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from streamgen.errors import InvalidRequestError

TokenIds: TypeAlias = tuple[int, ...]

MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_N = 128
_MAX_SHOWN_BITS = 256
GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this sample greedily: dividing logits by less would overflow float32."""


class FinishReason(StrEnum):
    """Why a sequence ended. `STOP`, `LENGTH` are OpenAI's; an `ABORT` was asked for; an `ERROR` was not."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose tokens, and when to end. Defaults are OpenAI's; `top_k` 0 or -1 means all tokens.

    Raises InvalidRequestError, naming the field, for a value out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int | None = None
    """Most tokens to generate; None fills the model's context."""
    min_tokens: int = 0
    """No end token is sampled, and no stop string is honoured, before this many tokens."""
    stop: tuple[str, ...] = ()
    stop_token_ids: TokenIds = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        _in_range("temperature", self.temperature, 0.0, 2.0)
        _in_range("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("top_k", self.top_k, -1, 2**31 - 1)
        if self.max_tokens is not None:
            _in_range("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _in_range("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens ({self.min_tokens}) is greater than max_tokens ({self.max_tokens}).", "min_tokens"
            )
        _in_range("n", self.n, 1, MAX_N)
        if self.seed is not None:
            _in_range("seed", self.seed, -(2**63), 2**63 - 1)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(
                f"stop has {len(self.stop)} strings; at most {MAX_STOP_STRINGS} are taken.", "stop"
            )
        for text in self.stop:
            if not text:
                raise InvalidRequestError("A stop string must not be empty.", "stop")
            if len(text) > MAX_STOP_CHARS:
                raise InvalidRequestError(f"A stop string may have at most {MAX_STOP_CHARS} characters.", "stop")
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequestError(f"At most {MAX_STOP_TOKEN_IDS} stop_token_ids are taken.", "stop_token_ids")

    def within(self, room: int) -> SamplingParams:
        """The same, with `max_tokens` no more than `room`: for a default, which nobody asked for, not for a wish."""
        if self.max_tokens is None or self.max_tokens <= room:
            return self
        return msgspec.structs.replace(self, max_tokens=room)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE


def _in_range(name: str, value: float, low: float, high: float, *, low_open: bool = False) -> None:
    # Written so that NaN, for which every comparison is false, is refused too. Comparing, unlike converting, also does
    # for integers that no float holds.
    if (low < value if low_open else low <= value) and value <= high:
        return
    bounds = f"{'greater than' if low_open else 'at least'} {low} and at most {high}"
    raise InvalidRequestError(f"{name} must be {bounds}; it was {_shown(value)}.", name)


def _shown(value: float) -> str:
    """A number for a message. JSON's integers have any length, and Python writes none of more than some digits."""
    if isinstance(value, int) and value.bit_length() > _MAX_SHOWN_BITS:
        return f"a number of {value.bit_length()} bits"
    return repr(value)


class RowSampling(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of SamplingParams that the sampler needs, resolved: a seed is always there, and so are the end tokens.

    The random number of a token is a function of (seed, sibling, position, purpose) alone, so that it depends neither
    on the batch nor on the slot.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    sibling: int
    min_tokens_until: int
    """Absolute position before which none of `banned_ids` may be sampled; 0 for never."""
    banned_ids: TokenIds


class Admission(msgspec.Struct, frozen=True, array_like=True):
    """A request that takes a slot of the persistent batch: all that a rank must know of it.

    `token_ids` are the prompt and whatever had been generated before a preemption; `block_ids` are the blocks that
    hold the first `num_computed_tokens` of them (prefix hits) and those allocated for this step.
    """

    slot: int
    request_id: int
    epoch: int
    token_ids: TokenIds
    num_computed_tokens: int
    block_ids: TokenIds
    sampling: RowSampling
    adapter_slot: int = 0


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request's part in one step: compute `num_tokens` tokens from position `start` on.

    `new_block_ids` are appended to the slot's block table first (for an admitted slot they are in the Admission).
    If `samples`, a token is sampled behind the last one and becomes the token at `start + num_tokens`.
    """

    slot: int
    request_id: int
    epoch: int
    start: int
    num_tokens: int
    samples: bool
    new_block_ids: TokenIds = ()


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """What one forward pass does. Plans are deltas over the persistent batch, numbered without gaps.

    A runner first clears the `released` slots (or, when `full`, all of them), then fills the `admitted` ones, then
    computes `rows`. A slot that is neither released nor in `rows` keeps its state and sits this step out.
    """

    step: int
    full: bool
    released: tuple[int, ...]
    admitted: tuple[Admission, ...]
    rows: tuple[Row, ...]

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """What came of a StepPlan, row by row in the plan's order.

    `counts[i]` tokens of the flat `token_ids` belong to row i: none if it did not sample, one, or (with drafts) more.
    `failed` holds the indices of rows whose logits were not finite. A step that raised has `error` set and no rows.
    """

    step: int
    counts: tuple[int, ...]
    token_ids: TokenIds
    failed: tuple[int, ...] = ()
    error: str | None = None
    fatal: bool = False
    """With `error`: the device cannot be used again in this process."""
    seconds: float = 0.0
    """Time the step took, from its launch to its sampled ids on the host."""


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What a stream gained: text and the tokens behind it, and how it ended if it did.

    `text` may be shorter than the tokens' (a stop string may be forming) or empty.
    """

    index: int
    text: str
    token_ids: TokenIds
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop string or stop token that ended it, if one did."""


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one request, all of its siblings together."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


_ENCODER = msgspec.msgpack.Encoder()
_PLAN_DECODER = msgspec.msgpack.Decoder(StepPlan)
_RESULT_DECODER = msgspec.msgpack.Decoder(StepResult)


def encode_plan(plan: StepPlan) -> bytes:
    return _ENCODER.encode(plan)


def decode_plan(data: bytes) -> StepPlan:
    return _PLAN_DECODER.decode(data)


def encode_result(result: StepResult) -> bytes:
    return _ENCODER.encode(result)


def decode_result(data: bytes) -> StepResult:
    return _RESULT_DECODER.decode(data)
