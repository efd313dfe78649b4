"""What a request asks for, checked against what the engine has, before anything is queued."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamgen.config import SchedulingPolicy
from streamgen.errors import ContextLengthError, InvalidRequestError
from streamgen.scheduling.request import Request
from streamgen.types import RowSampling, SamplingParams, TokenIds


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the loaded model and its KV pool can take."""

    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    max_num_batched_tokens: int
    end_token_ids: TokenIds = ()

    def clamped(self) -> Limits:
        """The same, but no longer than what the pool can hold: a longer request would wait for ever."""
        longest = (self.num_blocks - 1) * self.block_size
        return replace(self, max_model_len=min(self.max_model_len, longest))


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """A request whose every value is known and possible."""

    prompt: TokenIds
    params: SamplingParams
    max_tokens: int
    priority: int
    end_token_ids: TokenIds

    def request(self, request_id: int, sibling: int, seed: int, *, tenant: str, leader: Request | None) -> Request:
        """One of its `n` sequences."""
        params = self.params
        ends = () if params.ignore_eos else self.end_token_ids
        sampling = RowSampling(
            temperature=0.0 if params.greedy else params.temperature,
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            min_p=params.min_p,
            seed=(seed + 2**63) % 2**64 - 2**63,
            sibling=sibling,
            min_tokens_until=len(self.prompt) + params.min_tokens if params.min_tokens else 0,
            banned_ids=tuple(dict.fromkeys((*self.end_token_ids, *params.stop_token_ids))) if params.min_tokens else (),
        )
        return Request(
            request_id,
            self.prompt,
            sampling=sampling,
            max_tokens=self.max_tokens,
            min_tokens=params.min_tokens,
            end_token_ids=frozenset(ends),
            stop_token_ids=frozenset(params.stop_token_ids),
            priority=self.priority,
            tenant=tenant,
            # Prefixes are shared within a tenant only: a hit's short first-token time would tell others' prompts.
            cache_salt=tenant.encode(),
            leader=leader,
        )


def resolve(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    limits: Limits,
    priority: int = 0,
    policy: SchedulingPolicy = "fcfs",
) -> ResolvedRequest:
    """Check a request. Raises InvalidRequestError or ContextLengthError."""
    room = limits.max_model_len - len(prompt_token_ids)
    if room < 1:
        raise ContextLengthError(limits.max_model_len, len(prompt_token_ids), params.max_tokens, "prompt")
    prompt = _checked(prompt_token_ids, limits.vocab_size)
    for token_id in params.stop_token_ids:
        if not 0 <= token_id < limits.vocab_size:
            raise InvalidRequestError(f"Token id {token_id} is not in the vocabulary.", "stop_token_ids")
    if priority and policy == "fcfs":
        raise InvalidRequestError("The server schedules by arrival; a priority has no meaning here.", "priority")
    if params.max_tokens is not None and params.max_tokens > room:
        raise ContextLengthError(limits.max_model_len, len(prompt), params.max_tokens, "max_tokens")
    max_tokens = room if params.max_tokens is None else params.max_tokens
    if params.min_tokens > max_tokens:
        raise InvalidRequestError(
            f"min_tokens ({params.min_tokens}) is more than the {max_tokens} tokens that can be generated.",
            "min_tokens",
        )
    return ResolvedRequest(prompt, params, max_tokens, priority, limits.end_token_ids)


def _checked(prompt: Sequence[int], vocab_size: int) -> TokenIds:
    """The prompt as plain ints, whatever kind of integers it holds. Without a loop in Python: prompts are long."""
    try:
        ids = array("q", prompt)
    except (TypeError, OverflowError):
        raise InvalidRequestError("The prompt holds something that is no token id.", "prompt") from None
    if not ids:
        raise InvalidRequestError("The prompt has no tokens.", "prompt")
    if min(ids) < 0 or max(ids) >= vocab_size:
        position = next(i for i, token_id in enumerate(ids) if not 0 <= token_id < vocab_size)
        raise InvalidRequestError(
            f"Token id {ids[position]} at position {position} of the prompt is not in the vocabulary"
            f" of {vocab_size} tokens.",
            "prompt",
        )
    return tuple(ids)
