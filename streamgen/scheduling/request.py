"""One sequence from its admission to its end."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamgen.types import FinishReason, RowSampling, TokenIds


class RequestStatus(Enum):
    WAITING_FOR_SIBLING = auto()
    """Its prompt is being computed by a sibling, whose KV it will share."""
    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    """Waiting again: its blocks were taken, what it had sampled is kept."""
    FINISHED = auto()


class Request:
    """A sequence to be continued. Owned by the Scheduler; others read its tokens and its status, and no more.

    `num_computed_tokens` runs ahead of what the device has confirmed: it counts tokens whose KV a launched step will
    have written. `num_pending_tokens` counts tokens that launched steps will sample, whose values are not known yet.
    """

    __slots__ = (
        "adapter_slot",
        "arrival",
        "block_hashes",
        "block_ids",
        "cache_salt",
        "end_token_ids",
        "epoch",
        "finish_reason",
        "followers",
        "last_step",
        "leader",
        "max_tokens",
        "min_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_confirmed_tokens",
        "num_pending_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_published_blocks",
        "output_token_ids",
        "priority",
        "prompt_token_ids",
        "request_id",
        "sampling",
        "slot",
        "status",
        "stop_token_ids",
        "tenant",
    )

    def __init__(
        self,
        request_id: int,
        prompt_token_ids: Sequence[int],
        *,
        sampling: RowSampling,
        max_tokens: int,
        min_tokens: int = 0,
        end_token_ids: frozenset[int] = frozenset(),
        stop_token_ids: frozenset[int] = frozenset(),
        priority: int = 0,
        tenant: str = "",
        cache_salt: bytes = b"",
        leader: Request | None = None,
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids: TokenIds = tuple(prompt_token_ids)
        """One tuple for all siblings, and nobody's to change: tuple() of a tuple is that tuple."""
        self.num_prompt_tokens = len(self.prompt_token_ids)
        self.output_token_ids: list[int] = []
        self.sampling = sampling
        self.max_tokens = max_tokens
        self.min_tokens = min_tokens
        self.end_token_ids = end_token_ids
        """The model's own end tokens; empty when the request ignores them."""
        self.stop_token_ids = stop_token_ids
        self.priority = priority
        self.tenant = tenant
        self.cache_salt = cache_salt
        """Everything besides the tokens that changes the KV or may not be shared: tenant, adapter."""
        self.adapter_slot = 0
        self.leader = leader
        self.followers: list[Request] = []
        """Siblings that wait for this request's prompt."""

        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.arrival = 0
        self.epoch = 0
        self.slot = -1
        self.last_step = -1
        """The newest launched step that touches this request's blocks."""
        self.num_computed_tokens = 0
        self.num_confirmed_tokens = 0
        self.num_pending_tokens = 0
        self.num_cached_tokens = 0
        """Prompt tokens whose KV came from the prefix cache at the first admission."""
        self.num_preemptions = 0

        self.block_ids: list[int] = []
        self.block_hashes: list[bytes] = []
        self.num_published_blocks = 0

    @property
    def num_tokens(self) -> int:
        """Known tokens and those that launched steps will have sampled."""
        return self.num_known_tokens + self.num_pending_tokens

    @property
    def num_known_tokens(self) -> int:
        """Tokens of the prompt and of the output, as far as its values are known."""
        return self.num_prompt_tokens + len(self.output_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    @property
    def finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens that the next step may compute; none once the last output token is foreseen."""
        num_output_tokens = len(self.output_token_ids) + self.num_pending_tokens
        if num_output_tokens >= self.max_tokens:
            return 0
        return self.num_prompt_tokens + num_output_tokens - self.num_computed_tokens

    def known_tokens(self, start: int = 0, end: int | None = None) -> TokenIds:
        """The known tokens from `start` up to `end`, by default all: the prompt itself if there are no others."""
        num_prompt_tokens = self.num_prompt_tokens
        end = self.num_known_tokens if end is None else end
        if end <= num_prompt_tokens:
            return self.prompt_token_ids[start:end]
        outputs = self.output_token_ids[max(start - num_prompt_tokens, 0) : end - num_prompt_tokens]
        return (*self.prompt_token_ids[start:], *outputs)

    def __repr__(self) -> str:
        return (
            f"<Request {self.request_id} {self.status.name} {self.num_prompt_tokens}+{self.num_output_tokens}"
            f" computed={self.num_computed_tokens} pending={self.num_pending_tokens}>"
        )
