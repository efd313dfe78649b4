"""Random schedules against an oracle that computes one request after the other, one token at a time.

The scheduler and the fake runner are driven without threads or an event loop: a test decides when a result comes
back, so that every interleaving of planning, arrivals, aborts and results can be tried, and repeated.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgen.runtime.fake import FakeModelRunner, FakePendingStep
from streamgen.scheduling.kv_cache_manager import KVCacheManager
from streamgen.scheduling.request import Request
from streamgen.scheduling.scheduler import Scheduler
from streamgen.types import FinishReason, RowSampling, StepPlan, StepResult, decode_plan, encode_plan

EOS = 1
GREEDY = RowSampling(0.0, 0, 1.0, 0.0, 0, 0, 0, ())


def next_token(prompt: list[int], output: list[int]) -> int:
    """A token that depends on every token before it, in its place; EOS in one of twelve."""
    state = 17
    for token in (*prompt, -1, *output):
        state = (state * 1_000_003 + token + 7) % 2_147_483_647
    return EOS if state % 12 == 0 else 2 + state % 50


def oracle(prompt: list[int], max_tokens: int, *, ignore_eos: bool) -> tuple[list[int], FinishReason]:
    output: list[int] = []
    while len(output) < max_tokens:
        output.append(next_token(prompt, output))
        if output[-1] == EOS and not ignore_eos:
            return output, FinishReason.STOP
    return output, FinishReason.LENGTH


@dataclass
class Harness:
    num_blocks: int
    block_size: int
    max_num_seqs: int
    budget: int
    depth: int
    caching: bool = True
    policy: str = "fcfs"
    failing_steps: frozenset[int] = frozenset()
    outputs: dict[int, list[int]] = field(default_factory=dict)
    reasons: dict[int, FinishReason] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kv = KVCacheManager(self.num_blocks, self.block_size, enable_prefix_caching=self.caching, root=b"root")
        self.scheduler = Scheduler(
            self.kv, max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.budget, policy=self.policy
        )
        self.runner = FakeModelRunner(next_token, num_blocks=self.num_blocks, block_size=self.block_size)
        self.launched: deque[FakePendingStep | StepResult] = deque()
        self.broken = False

    def add(self, request: Request) -> None:
        self.outputs[request.request_id] = []
        self.scheduler.add(request)
        self.scheduler.check()

    def finish(self, request: Request, reason: FinishReason = FinishReason.ABORT) -> None:
        if not request.finished:
            self.scheduler.finish(request, reason)
            self.reasons[request.request_id] = reason
            self.scheduler.check()

    def launch(self) -> bool:
        if self.scheduler.num_in_flight >= self.depth:
            return False
        plan = self.scheduler.schedule()
        self.scheduler.check()
        if plan is None:
            return False
        assert sum(row.num_tokens for row in plan.rows) <= self.budget
        assert len(plan.rows) <= self.max_num_seqs
        assert all(row.num_tokens > 0 for row in plan.rows)
        self.launched.append(self.execute(decode_plan(encode_plan(plan))))
        return True

    def execute(self, plan: StepPlan) -> FakePendingStep | StepResult:
        """What the executor does: after a failed step everything is void until a full plan comes."""
        if plan.full and self.broken:
            self.runner.reset()
            self.broken = False
        if plan.step in self.failing_steps:
            self.broken = True
        if self.broken:
            return StepResult(plan.step, (), (), error="RuntimeError: acted out")
        return self.runner.launch(plan)

    def collect(self) -> bool:
        if not self.launched:
            return False
        step = self.launched.popleft()
        result = step if isinstance(step, StepResult) else step.wait()
        for progress in self.scheduler.update(result):
            request_id = progress.request.request_id
            self.outputs[request_id].extend(progress.token_ids)
            if progress.finish_reason is not None:
                assert request_id not in self.reasons, "a request ended twice"
                self.reasons[request_id] = progress.finish_reason
        self.scheduler.check()
        return True

    def run(self, limit: int = 20_000) -> None:
        for _ in range(limit):
            if not self.launch() and not self.collect():
                break
        else:
            raise AssertionError("the schedule does not end")
        assert not self.scheduler.requests, "requests were left behind"
        pool = self.kv.pool
        assert pool.num_available == pool.num_usable, "blocks were lost"


def make_request(
    request_id: int, prompt: list[int], max_tokens: int, *, ignore_eos: bool = False, **kwargs: object
) -> Request:
    ends = frozenset() if ignore_eos else frozenset([EOS])
    return Request(request_id, prompt, sampling=GREEDY, max_tokens=max_tokens, end_token_ids=ends, **kwargs)


@st.composite
def harnesses(draw: st.DrawFn) -> Harness:
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    max_num_seqs = draw(st.integers(1, 6))
    least = -(-LONGEST // block_size) + 1
    return Harness(
        num_blocks=draw(st.integers(least, least + least // 2 + 4)),
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        budget=draw(st.integers(max_num_seqs, 40)),
        depth=draw(st.integers(1, 3)),
        caching=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        failing_steps=frozenset(draw(st.lists(st.integers(0, 60), max_size=2))),
    )


PREFIXES = [list(range(3, 21)), [9] * 16, []]
LONGEST = 18 + 20 + 24


@settings(max_examples=200, deadline=None)
@given(harness=harnesses(), seed=st.integers(0, 2**32), num_actions=st.integers(1, 160))
def test_random_schedules_equal_the_oracle(harness: Harness, seed: int, num_actions: int) -> None:
    """Actions come from a seeded generator of our own: drawn one by one they would stay too few to meet each other."""
    choose = random.Random(seed)
    requests: list[Request] = []
    ended_by_client: set[int] = set()
    for _ in range(num_actions):
        action = choose.choices(["add", "launch", "collect", "end"], weights=[3, 6, 5, 1])[0]
        if action == "add" and len(harness.scheduler.requests) < 12:
            prompt = choose.choice(PREFIXES) + choose.choices(range(2, 5), k=choose.randint(1, 20))
            max_tokens = choose.randint(1, 24)
            priority = choose.randint(0, 2) if harness.policy == "priority" else 0
            leader = None
            for _sibling in range(choose.choice([1, 1, 2, 3])):
                request = make_request(len(requests), prompt, max_tokens, priority=priority, leader=leader)
                leader = leader or request
                requests.append(request)
                harness.add(request)
        elif action == "launch":
            harness.launch()
        elif action == "collect":
            harness.collect()
        elif action == "end" and harness.scheduler.requests:
            request = choose.choice(list(harness.scheduler.requests.values()))
            ended_by_client.add(request.request_id)
            harness.finish(request, choose.choice([FinishReason.ABORT, FinishReason.STOP]))
    harness.run()
    for request in requests:
        prompt = list(request.prompt_token_ids)
        output, reason = oracle(prompt, request.max_tokens, ignore_eos=False)
        got = harness.outputs[request.request_id]
        if request.request_id in ended_by_client or harness.reasons[request.request_id] is FinishReason.ERROR:
            assert got == output[: len(got)]
        else:
            assert got == output
            assert harness.reasons[request.request_id] is reason


def test_a_wrong_block_is_noticed() -> None:
    """The harness catches what it is there to catch: blocks given back while a step in flight touches them."""
    harness = Harness(num_blocks=6, block_size=4, max_num_seqs=2, budget=16, depth=2)
    first = make_request(0, [5] * 12, 8, ignore_eos=True)
    harness.add(first)
    harness.launch()
    harness.kv.pool.release(list(first.block_ids), deferred=False)
    first.block_ids = []
    harness.scheduler.running.clear()
    harness.scheduler.requests.clear()
    second = make_request(1, [6] * 12, 4, ignore_eos=True)
    harness.scheduler.add(second)
    plan = harness.scheduler.schedule()
    assert plan is not None
    with pytest.raises(AssertionError, match="in flight"):
        harness.runner.launch(plan)


def test_preemption_gives_the_tokens_of_ample_memory() -> None:
    outputs = []
    for num_blocks in (200, 8):
        harness = Harness(num_blocks=num_blocks, block_size=4, max_num_seqs=4, budget=8, depth=2)
        for request_id in range(4):
            harness.add(make_request(request_id, [10 + request_id] * 5, 20, ignore_eos=True))
        harness.run()
        outputs.append(harness.outputs)
    assert outputs[0] == outputs[1]
    assert harness.scheduler.num_preemptions > 0


def test_siblings_compute_the_prompt_once() -> None:
    for caching in (True, False):
        harness = Harness(num_blocks=64, block_size=4, max_num_seqs=4, budget=64, depth=2, caching=caching)
        leader = make_request(0, [5] * 33, 4, ignore_eos=True)
        harness.add(leader)
        for request_id in (1, 2, 3):
            harness.add(make_request(request_id, [5] * 33, 4, ignore_eos=True, leader=leader))
        harness.run()
        assert harness.runner.num_tokens < 33 + 3 * 1 + 4 * 4 + 4, "the prompt was computed again"
        assert len({tuple(o) for o in harness.outputs.values()}) == 1


def test_C3_aborts_leak_no_block() -> None:
    """2,000 requests with shared prefixes, aborted at pseudo-random moments: each block is accounted for."""
    harness = Harness(num_blocks=64, block_size=4, max_num_seqs=8, budget=32, depth=2)
    state, live = 12345, deque()
    for request_id in range(2000):
        state = (state * 1103515245 + 12345) % 2**31
        request = make_request(request_id, [*PREFIXES[state % 2][: 4 + state % 13], state % 7], 1 + state % 30)
        harness.add(request)
        live.append(request)
        harness.launch()
        if state % 3:
            harness.collect()
        if len(live) > 12 or state % 5 == 0:
            harness.finish(live[state % len(live)])
            live = deque(r for r in live if not r.finished)
    harness.run()
    assert harness.kv.pool.num_available == 63


def test_C4_one_that_waits_for_memory_does_not_block_for_ever() -> None:
    harness = Harness(num_blocks=9, block_size=4, max_num_seqs=4, budget=64, depth=2)
    assert harness.kv.fits(8 * 4)
    assert not harness.kv.fits(8 * 4 + 1), "refused at admission, never queued"
    harness.add(make_request(0, [5] * 24, 8, ignore_eos=True))
    harness.add(make_request(1, [6] * 24, 8, ignore_eos=True))
    harness.add(make_request(2, [7] * 2, 2, ignore_eos=True))
    harness.run()
    assert [len(harness.outputs[i]) for i in range(3)] == [8, 8, 2]


def test_D1_a_constant_hash_shares_nothing_wrong(monkeypatch) -> None:
    monkeypatch.setattr("streamgen.scheduling.kv_cache_manager.hash_block", lambda *_: b"constant")
    harness = Harness(num_blocks=64, block_size=4, max_num_seqs=1, budget=64, depth=1)
    for request_id, token in enumerate((5, 6)):
        harness.add(make_request(request_id, [token] * 21, 4, ignore_eos=True))
        harness.run()
        assert harness.outputs[request_id] == oracle([token] * 21, 4, ignore_eos=True)[0]


def test_D1_block_names_cannot_be_computed_outside() -> None:
    one, two = KVCacheManager(8, 4), KVCacheManager(8, 4)
    request = [make_request(0, [5] * 9, 1) for _ in range(2)]
    assert one._hash_at(request[0], 1) != two._hash_at(request[1], 1)
    assert len(request[0].block_hashes[0]) == 32


def prefix_hits_with_salts(*salts: bytes) -> int:
    harness = Harness(num_blocks=64, block_size=4, max_num_seqs=1, budget=64, depth=1)
    for request_id, salt in enumerate(salts):
        harness.add(make_request(request_id, [5] * 21, 4, ignore_eos=True, cache_salt=salt))
        harness.run()
    return harness.scheduler.num_prefix_hits


def test_the_same_prompt_is_found_again() -> None:
    assert prefix_hits_with_salts(b"a", b"a") == 20
    assert prefix_hits_with_salts(b"a", b"b") == 0


def test_what_a_corrupted_request_wrote_is_found_by_nobody() -> None:
    """Its blocks may hold what is not finite, or what such KV was replaced by: a hit would be wrong, and in silence."""
    harness = Harness(num_blocks=64, block_size=4, max_num_seqs=2, budget=8, depth=2)
    harness.add(make_request(0, [5] * 9, 12, ignore_eos=True))
    harness.run()
    harness.runner.script = lambda prompt, output: -1 if len(prompt) == 30 else next_token(prompt, output)
    bystander, corrupted = make_request(1, [5] * 11, 20, ignore_eos=True), make_request(2, [5] * 30, 4)
    harness.add(bystander)
    harness.add(corrupted)
    harness.run()
    assert harness.reasons[2] is FinishReason.ERROR
    assert harness.outputs[1] == oracle([5] * 11, 20, ignore_eos=True)[0]
    hits = harness.scheduler.num_prefix_hits
    harness.add(make_request(3, [5] * 30, 1))
    harness.run()
    assert harness.scheduler.num_prefix_hits == hits


def test_decodes_go_on_beside_a_long_prompt() -> None:
    """A long prompt takes what is left of the budget, never another's next token; and it is not starved either."""
    harness = Harness(num_blocks=400, block_size=4, max_num_seqs=4, budget=16, depth=1)
    harness.add(make_request(0, [5] * 400, 2, ignore_eos=True))
    harness.launch()
    harness.collect()
    for request_id in (1, 2, 3):
        harness.add(make_request(request_id, [request_id] * 2, 10, ignore_eos=True))
    for _ in range(14):
        harness.launch()
        harness.collect()
    assert all(harness.reasons.get(i) is FinishReason.LENGTH for i in (1, 2, 3))
    assert harness.scheduler.requests[0].num_computed_tokens > 100
    harness.run()
