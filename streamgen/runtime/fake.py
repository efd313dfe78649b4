"""A Runner without a model, for tests and for measuring everything around the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from streamgen.types import Admission, StepPlan, StepResult, TokenIds

Script: TypeAlias = Callable[[Sequence[int], Sequence[int]], int]
"""(prompt ids, output ids so far) → the next token id."""


def scripted(token_ids: Sequence[int], *, then: int = 0) -> Script:
    """Say these tokens whatever the prompt is, and `then` for ever."""

    def script(_prompt: Sequence[int], output: Sequence[int]) -> int:
        return token_ids[len(output)] if len(output) < len(token_ids) else then

    return script


@dataclass(slots=True)
class _Slot:
    admission: Admission
    num_prompt_tokens: int
    tokens: list[int]
    blocks: list[int]


@dataclass(slots=True)
class FakePendingStep:
    runner: FakeModelRunner
    plan: StepPlan
    result: StepResult
    touched: frozenset[int] = field(default_factory=frozenset)

    def ready(self) -> bool:
        """Withheld until the next step was launched, so that two really are in flight."""
        return self.runner.last_launched > self.plan.step

    def wait(self) -> StepResult:
        self.runner.collected(self)
        return self.result


class FakeModelRunner:
    """Emits tokens by a script, from a KV pool that it simulates token by token.

    What a row "attends to" is read from the simulated blocks through its block table, so that a block which was
    handed out too early, published too soon or shared wrongly changes what the script sees, or trips an assertion.
    """

    def __init__(
        self,
        script: Script,
        *,
        num_blocks: int = 1024,
        block_size: int = 16,
        max_model_len: int = 8192,
        vocab_size: int = 2**31,
        before_step: Callable[[StepPlan], None] | None = None,
    ) -> None:
        """Args:
        script: chooses tokens; a negative one stands for logits that are not finite.
        before_step: called at each launch; may raise, or block, to act out a fault.
        """
        self.script = script
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.before_step = before_step
        self.last_launched = -1
        self.num_steps = 0
        self.num_tokens = 0
        self.closed = False
        self._slots: dict[int, _Slot] = {}
        self._kv: dict[tuple[int, int], int] = {}
        self._prompt_lengths: dict[int, int] = {}
        self._pending: list[FakePendingStep] = []

    def launch(self, plan: StepPlan) -> FakePendingStep:
        if self.before_step is not None:
            self.before_step(plan)
        if plan.full:
            self._slots.clear()
        self.last_launched = plan.step
        self.num_steps += 1
        self.num_tokens += plan.num_tokens
        for slot in plan.released:
            self._slots.pop(slot, None)
        for admission in plan.admitted:
            self._admit(admission)
        counts, token_ids, failed = [], [], []
        touched: set[int] = set()
        for index, row in enumerate(plan.rows):
            state = self._slots[row.slot]
            assert (state.admission.request_id, state.admission.epoch) == (row.request_id, row.epoch)
            self._own(row.new_block_ids)
            state.blocks.extend(row.new_block_ids)
            touched.update(state.blocks)
            token = self._compute(state, row.start, row.num_tokens) if row.samples else None
            if not row.samples:
                self._write(state, row.start, row.num_tokens)
            if token is not None:
                # A ghost row may follow one whose logits were not finite: the device has some token for it.
                state.tokens.append(max(token, 0))
            if token is not None and token < 0:
                failed.append(index)
                token = None
            counts.append(0 if token is None else 1)
            if token is not None:
                token_ids.append(token)
        result = StepResult(plan.step, tuple(counts), tuple(token_ids), tuple(failed))
        pending = FakePendingStep(self, plan, result, frozenset(touched))
        self._pending.append(pending)
        return pending

    def reset(self) -> None:
        self._slots.clear()
        self._kv.clear()
        self._pending.clear()

    def close(self) -> None:
        self.closed = True

    def collected(self, pending: FakePendingStep) -> None:
        if pending in self._pending:
            self._pending.remove(pending)

    def _admit(self, admission: Admission) -> None:
        assert admission.slot not in self._slots, "a slot was given to two requests"
        own = admission.block_ids[admission.num_computed_tokens // self.block_size :]
        self._own(own)
        length = self._prompt_lengths.setdefault(admission.request_id, len(admission.token_ids))
        self._slots[admission.slot] = _Slot(admission, length, list(admission.token_ids), list(admission.block_ids))

    def _own(self, blocks: TokenIds) -> None:
        """Blocks are handed out for writing: no step in flight may still touch them."""
        for pending in self._pending:
            assert pending.touched.isdisjoint(blocks), "a block was reused while a step in flight touches it"
        for block in blocks:
            assert 0 < block < self.num_blocks
            for offset in range(self.block_size):
                self._kv.pop((block, offset), None)

    def _write(self, state: _Slot, start: int, num_tokens: int) -> None:
        for position in range(start, start + num_tokens):
            block, offset = divmod(position, self.block_size)
            self._kv[state.blocks[block], offset] = state.tokens[position]

    def _compute(self, state: _Slot, start: int, num_tokens: int) -> int:
        assert start + num_tokens == len(state.tokens), "a token is sampled only behind the last one"
        self._write(state, start, num_tokens)
        attended = []
        for position in range(start + num_tokens):
            block, offset = divmod(position, self.block_size)
            attended.append(self._kv[state.blocks[block], offset])
        assert attended == state.tokens, "the KV of another prompt was read"
        sampling = state.admission.sampling
        token = self.script(attended[: state.num_prompt_tokens], attended[state.num_prompt_tokens :])
        if len(state.tokens) < sampling.min_tokens_until and token in sampling.banned_ids:
            return 0
        return token
