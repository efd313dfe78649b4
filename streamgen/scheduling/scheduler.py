"""Continuous batching: which request computes how many tokens in the next step."""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from streamgen.scheduling.request import Request, RequestStatus
from streamgen.scheduling.waiting_queue import create_queue, rank
from streamgen.types import Admission, FinishReason, Row, StepPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamgen.config import SchedulingPolicy
    from streamgen.scheduling.kv_cache_manager import KVCacheManager
    from streamgen.types import StepResult


class Progress(NamedTuple):
    """What one request gained by a step."""

    request: Request
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    stop_token_id: int | None
    """The token that ended it, if one of `stop_token_ids` did."""
    corrupted: bool = False
    """With `ERROR`: its logits were not finite, while the step as such succeeded."""


class Scheduler:
    """Plans steps and reconciles their results.

    There is no prefill and no decode: every request only catches `num_computed_tokens` up with `num_tokens`. Chunked
    prefill, prefix hits and recomputation after a preemption are the same case.

    Plans are made ahead of results. `schedule` assumes that every launched step succeeds; where that turns out wrong
    (the sequence had ended, or was aborted), its row in a later step is a ghost whose result is dropped.

    Owned by the event loop. `check` asserts all invariants and is called after each step in tests.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policy: SchedulingPolicy = "fcfs",
    ) -> None:
        assert max_num_batched_tokens >= max_num_seqs, "each running request must get a token in each step"
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.requests: dict[int, Request] = {}
        """All that are unfinished, whatever their status."""
        self.waiting = create_queue(policy)
        self.running: list[Request] = []
        """Best rank first, so that the last one is the first to be preempted."""
        self.num_preemptions = 0
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0
        self.num_waiting_tokens = 0
        """Tokens of the requests that have not run yet, siblings included."""

        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._released_slots: list[int] = []
        self._in_flight: deque[StepPlan] = deque()
        self._void_through = -1
        """Results up to this step are dropped: the device state that they came from is gone."""
        self._next_step = 0
        self._next_arrival = 0
        self._resynchronize = True

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def num_waiting(self) -> int:
        return len(self.requests) - len(self.running)

    def add(self, request: Request) -> None:
        """Queue a request that `kv.fits`. A sibling waits until its leader's prompt is computed."""
        request.arrival = self._next_arrival
        self._next_arrival += 1
        self.requests[request.request_id] = request
        self.num_waiting_tokens += request.num_prompt_tokens
        leader = request.leader
        if leader is not None and not leader.finished and leader.num_confirmed_tokens < leader.num_prompt_tokens:
            request.status = RequestStatus.WAITING_FOR_SIBLING
            leader.followers.append(request)
        else:
            self.waiting.add(request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request in whatever state it is. It is in no plan made afterwards; its blocks are given back."""
        assert not request.finished
        if request.status is RequestStatus.RUNNING:
            self._leave_batch(request)
        elif request.status is RequestStatus.WAITING_FOR_SIBLING:
            assert request.leader is not None
            request.leader.followers.remove(request)
        else:
            self.waiting.remove(request)
        if request.num_preemptions == 0 and request.status is not RequestStatus.RUNNING:
            self.num_waiting_tokens -= request.num_prompt_tokens
        self._release_followers(request)
        del self.requests[request.request_id]
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason

    def schedule(self) -> StepPlan | None:
        """Plan the next step; None if nothing can be computed before a result comes or a request arrives."""
        budget = self.max_num_batched_tokens
        rows: list[Row] = []
        for index, request in enumerate(list(self.running)):
            if request.status is not RequestStatus.RUNNING:  # preempted by one of better rank, in this loop
                break
            wanted = request.num_tokens_to_compute
            if wanted == 0:
                continue
            # Nobody is kept from its next token by another's long prompt: one is set aside for each that follows.
            wanted = min(wanted, budget - (len(self.running) - index - 1), self._chunk_limit())
            blocks = self._allocate_for_running(request, wanted)
            if blocks is None:
                continue
            rows.append(self._row(request, wanted, blocks))
            budget -= wanted
        admitted = self._admit_waiting(budget, rows)
        if not rows:
            return None
        plan = StepPlan(
            step=self._next_step,
            full=self._resynchronize,
            released=tuple(self._released_slots),
            admitted=tuple(admitted),
            rows=tuple(rows),
        )
        self._resynchronize = False
        self._released_slots.clear()
        self._next_step += 1
        self._in_flight.append(plan)
        return plan

    def update(self, result: StepResult) -> list[Progress]:
        """Take the result of the oldest step in flight.

        A result with an error fails the requests of its step; the others in flight are requeued, to be computed anew,
        and the next plan is a full one.
        """
        plan = self._in_flight.popleft()
        assert plan.step == result.step, "results come in the order of their steps"
        self.kv.settle(plan.step)
        if plan.step <= self._void_through:
            return []
        if result.error is not None:
            return self._fail_step(plan)
        failed = frozenset(result.failed)
        progress: list[Progress] = []
        cursor = 0
        for index, (row, count) in enumerate(zip(plan.rows, result.counts, strict=True)):
            token_ids = result.token_ids[cursor : cursor + count]
            cursor += count
            request = self.requests.get(row.request_id)
            if request is None or request.epoch != row.epoch:
                continue  # a ghost row: the request ended while this step was in flight
            if index in failed:
                self.kv.distrust(request)
                self.finish(request, FinishReason.ERROR)
                progress.append(Progress(request, (), FinishReason.ERROR, None, corrupted=True))
                continue
            if request.status is RequestStatus.RUNNING:
                self.kv.confirm(request, row.start + row.num_tokens)
                if request.followers and request.num_confirmed_tokens >= request.num_prompt_tokens:
                    self._release_followers(request)
            if row.samples:
                progress.append(self._append(request, token_ids))
        return progress

    def check(self) -> None:
        """Assert every invariant."""
        self.kv.check(self.requests.values())
        assert self.running == sorted(self.running, key=rank)
        slots = [request.slot for request in self.running]
        assert sorted(slots + self._free_slots) == list(range(self.max_num_seqs)), "slots were lost or shared"
        waiting = list(self.waiting)
        followers = [f for r in self.requests.values() for f in r.followers]
        assert len(self.running) + len(waiting) + len(followers) == len(self.requests)
        assert {id(r) for r in (*self.running, *waiting, *followers)} == {id(r) for r in self.requests.values()}
        for request in (*waiting, *followers):
            assert not request.block_ids, "a waiting request holds blocks"
            assert request.slot == -1
        pending = dict.fromkeys(self.requests, 0)
        for plan in self._in_flight:
            if plan.step <= self._void_through:
                continue
            for row in plan.rows:
                owner = self.requests.get(row.request_id)
                if owner is not None and owner.epoch == row.epoch and row.samples:
                    pending[row.request_id] += 1
        for request in self.requests.values():
            assert request.num_pending_tokens == pending[request.request_id], "a sampled token is unaccounted for"
            assert request.num_output_tokens + request.num_pending_tokens <= request.max_tokens
            if request.status is RequestStatus.RUNNING:
                assert request.num_computed_tokens <= request.num_tokens
        fresh = [r for r in (*waiting, *followers) if r.num_preemptions == 0]
        assert self.num_waiting_tokens == sum(r.num_prompt_tokens for r in fresh)

    def _chunk_limit(self) -> int:
        """Most tokens of one running request in a step: half the budget while others wait to start."""
        others_wait = len(self.waiting) > 0 and len(self.running) < self.max_num_seqs
        return max(1, self.max_num_batched_tokens // 2) if others_wait else self.max_num_batched_tokens

    def _allocate_for_running(self, request: Request, num_tokens: int) -> tuple[int, ...] | None:
        """Blocks for a running request, taken from others of worse rank if need be.

        None if it must sit this step out: blocks are about to come back from a step in flight, or all others that
        run are of better rank.
        """
        while (blocks := self.kv.allocate(request, num_tokens)) is None:
            if self.kv.pool.num_deferred > 0 or self.running[-1] is request:
                return None
            self._preempt(self.running[-1])
        return blocks

    def _admit_waiting(self, budget: int, rows: list[Row]) -> list[Admission]:
        admitted: list[Admission] = []
        while budget > 0 and (request := self.waiting.pick()) is not None:
            if self._is_in_flight(request):
                break  # preempted a moment ago; what launched steps make of it must be known before it starts anew
            if len(self.running) >= self.max_num_seqs and not self._make_room(request, rows):
                break
            prefix = self.kv.find_prefix(request)
            num_cached = len(prefix) * self.kv.block_size
            wanted = min(request.num_tokens - num_cached, budget)
            needed = self.kv.num_blocks_for(num_cached + wanted) - len(prefix)
            if needed + self.kv.num_idle(prefix) > self.kv.pool.num_available:
                if self.kv.pool.num_deferred == 0 and self._make_room(request, rows):
                    continue
                break
            first_time = request.num_preemptions == 0
            self.waiting.remove(request)
            self.kv.adopt(request, prefix)
            blocks = self.kv.allocate(request, wanted)
            assert blocks is not None
            if first_time:
                self.num_waiting_tokens -= request.num_prompt_tokens
                request.num_cached_tokens = num_cached
                self.num_prefix_queries += request.num_prompt_tokens
                self.num_prefix_hits += num_cached
            request.slot = self._free_slots.pop()
            request.status = RequestStatus.RUNNING
            insort(self.running, request, key=rank)
            admitted.append(
                Admission(
                    slot=request.slot,
                    request_id=request.request_id,
                    epoch=request.epoch,
                    token_ids=request.known_tokens(),
                    num_computed_tokens=num_cached,
                    block_ids=tuple(request.block_ids),
                    sampling=request.sampling,
                    adapter_slot=request.adapter_slot,
                )
            )
            rows.append(self._row(request, wanted, ()))
            budget -= wanted
        return admitted

    def _make_room(self, request: Request, rows: list[Row]) -> bool:
        """Preempt the running request of worst rank for a waiting one of better priority, if there is one.

        One that has a row in the plan that is being made stays: the row may not be taken back.
        """
        if not self.running:
            return False
        victim = self.running[-1]
        if victim.priority <= request.priority or any(row.request_id == victim.request_id for row in rows):
            return False
        self._preempt(victim)
        return True

    def _row(self, request: Request, num_tokens: int, new_block_ids: tuple[int, ...]) -> Row:
        """A request's part in the step that is being planned; its counters move on as if the step had succeeded."""
        start = request.num_computed_tokens
        request.num_computed_tokens += num_tokens
        samples = request.num_computed_tokens == request.num_tokens
        if samples:
            request.num_pending_tokens += 1
        request.last_step = self._next_step
        self.waiting.charge(request.tenant, num_tokens)
        return Row(request.slot, request.request_id, request.epoch, start, num_tokens, samples, new_block_ids)

    def _append(self, request: Request, token_ids: Sequence[int]) -> Progress:
        """Add sampled tokens to a request and end it if they say so."""
        request.num_pending_tokens -= 1
        for count, token_id in enumerate(token_ids, 1):
            request.output_token_ids.append(token_id)
            reason, stop_token_id = self._end_after(request, token_id)
            if reason is not None:
                self.finish(request, reason)
                return Progress(request, tuple(token_ids[:count]), reason, stop_token_id)
        return Progress(request, tuple(token_ids), None, None)

    @staticmethod
    def _end_after(request: Request, token_id: int) -> tuple[FinishReason | None, int | None]:
        if request.num_output_tokens > request.min_tokens:
            if token_id in request.end_token_ids:
                return FinishReason.STOP, None
            if token_id in request.stop_token_ids:
                return FinishReason.STOP, token_id
        if request.num_output_tokens >= request.max_tokens:
            return FinishReason.LENGTH, None
        return None, None

    def _preempt(self, request: Request) -> None:
        """Take a running request's slot and blocks. Its tokens stay, those that are being sampled included."""
        self._leave_batch(request)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(request)

    def _leave_batch(self, request: Request) -> None:
        self.running.remove(request)
        self._free_slots.append(request.slot)
        self._released_slots.append(request.slot)
        request.slot = -1
        self.kv.free(request, until_step=request.last_step if self._is_in_flight(request) else None)

    def _is_in_flight(self, request: Request) -> bool:
        """Whether a launched step that has not come back touches the request."""
        return bool(self._in_flight) and request.last_step >= self._in_flight[0].step

    def _release_followers(self, request: Request) -> None:
        """Siblings need not wait for this request any longer: its prompt is computed, or it will never be.

        In the second case one of them computes the prompt and the others wait for that one.
        """
        followers, request.followers = request.followers, []
        if followers and request.num_confirmed_tokens < request.num_prompt_tokens:
            leader, *rest = followers
            leader.leader = None
            for sibling in rest:
                sibling.leader = leader
            leader.followers = rest
            followers = [leader]
        for sibling in followers:
            sibling.status = RequestStatus.WAITING
            self.waiting.add(sibling)

    def _fail_step(self, plan: StepPlan) -> list[Progress]:
        """A step raised: end its requests, and compute all others anew from what they have."""
        self._void_through = self._next_step - 1
        self._resynchronize = True
        progress = []
        for row in plan.rows:
            request = self.requests.get(row.request_id)
            if request is not None and request.epoch == row.epoch:
                self.finish(request, FinishReason.ERROR)
                progress.append(Progress(request, (), FinishReason.ERROR, None))
        for request in list(self.running):
            self._preempt(request)
        for request in self.requests.values():
            request.num_pending_tokens = 0
            request.epoch += 1
        self.kv.pool.forget_all()
        return progress
