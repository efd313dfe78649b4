from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from streamgen.layers.kv_cache import KVGroup
from streamgen.models.model import Model
from streamgen.runtime.input_batch import InputBatch, StepInputs
from streamgen.runtime.sampler import Sampler
from streamgen.runtime.threads import cpu_threads
from streamgen.scheduling.block_pool import PADDING_BLOCK
from streamgen.types import Admission, Row, RowSampling, StepPlan, StepResult


@dataclass(frozen=True)
class LaunchedStep:
    """A step on its way: `sampled` is on the host, or will be once `arrived` has happened."""

    plan: StepPlan
    sampled: Tensor | None
    arrived: torch.cuda.Event | None
    started: float
    broken: frozenset[int] = frozenset()
    """Indices of rows that do not sample and are known to be not finite."""

    def ready(self) -> bool:
        return self.arrived is None or bool(self.arrived.query())

    def wait(self) -> StepResult:
        if self.arrived is not None:
            self.arrived.synchronize()
        sampled = iter([] if self.sampled is None else self.sampled.tolist())
        counts, token_ids, failed = [], [], []
        for index, row in enumerate(self.plan.rows):
            token = next(sampled) if row.samples else -1
            counts.append(int(token >= 0))
            if token >= 0:
                token_ids.append(token)
            elif row.samples or index in self.broken:
                failed.append(index)
        return StepResult(
            step=self.plan.step,
            counts=tuple(counts),
            token_ids=tuple(token_ids),
            failed=tuple(failed),
            seconds=time.perf_counter() - self.started,
        )


class ModelRunner:
    """Computes steps on one device: a `Runner`. Used from the GPU thread only, which owns every tensor."""

    def __init__(
        self,
        model: Model,
        *,
        sampler: Sampler,
        kv: list[KVGroup],
        num_blocks: int,
        max_model_len: int,
        max_num_seqs: int,
        steps_in_flight: int,
    ) -> None:
        self.num_blocks = num_blocks
        self.max_model_len = max_model_len
        self.vocab_size = model.config.vocab_size
        self._model = model
        self._sampler = sampler
        self._kv = kv
        self._num_slots = max_num_seqs
        self._batch = InputBatch(
            num_slots=max_num_seqs,
            max_model_len=max_model_len,
            vocab_size=self.vocab_size,
            kv=kv,
            device=model.device,
            # An upload for blocks, one for admissions and one for inputs in each step.
            depth=3 * (steps_in_flight + 1),
        )

    @property
    def on_cpu(self) -> bool:
        return self._model.device.type == "cpu"

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        started = time.perf_counter()
        self._batch.update(plan)
        if not plan.rows:
            return LaunchedStep(plan, None, None, started)
        inputs = self._batch.inputs(plan)
        broken: frozenset[int] = frozenset()
        if self.on_cpu and len(inputs.wanted) < len(plan.rows):
            hidden, broken = self._forward_and_look(plan, inputs)
        else:
            hidden = self._model.forward(inputs.token_ids, inputs.context, inputs.wanted)
        if not len(inputs.wanted):
            return LaunchedStep(plan, None, self._record(), started, broken)
        sampled = self._sampler(self._model.logits(hidden), inputs.sampling)
        self._batch.write_sampled(inputs, sampled)
        if self.on_cpu:
            self._scrub_failed(plan, sampled)
            return LaunchedStep(plan, sampled, None, started, broken)
        on_host = torch.empty(sampled.shape, dtype=sampled.dtype, pin_memory=True)
        on_host.copy_(sampled, non_blocking=True)
        return LaunchedStep(plan, on_host, self._record(), started)

    def _forward_and_look(self, plan: StepPlan, inputs: StepInputs) -> tuple[Tensor, frozenset[int]]:
        """What `forward` computes for the rows that sample, and which of the others are not finite: those are scrubbed.

        A row attends to all that it has written, so that its last token tells of every other one.
        """
        last = inputs.context.query_start[1:].to(torch.int64) - 1
        hidden = self._model.forward(inputs.token_ids, inputs.context, last)
        finite = hidden.isfinite().all(dim=1).tolist()
        broken = frozenset(i for i, row in enumerate(plan.rows) if not row.samples and not finite[i])
        for index in broken:
            self._scrub(plan.rows[index].slot)
        return hidden[[i for i, row in enumerate(plan.rows) if row.samples]], broken

    def _record(self) -> torch.cuda.Event | None:
        if self.on_cpu:
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def _scrub_failed(self, plan: StepPlan, sampled: Tensor) -> None:
        """Scrub what the rows that sampled nothing have written."""
        if bool((sampled >= 0).all()):
            return
        slots = [row.slot for row in plan.rows if row.samples]
        for slot, token in zip(slots, sampled.tolist(), strict=True):
            if token < 0:
                self._scrub(slot)

    def _scrub(self, slot: int) -> None:
        """What is not finite in a slot's blocks must not reach those who get them next.

        The CPU's attention on floats multiplies what lies behind a row's end by zero, which does not remove NaN. Other
        kernels never read it.
        """
        blocks = self._batch.blocks_of(slot)
        if len(blocks):
            for group in self._kv:
                group.scrub(blocks)

    def warm_up(self) -> None:
        """Compute one token in the padding block, so that the first request does not pay for what is prepared once."""
        sampling = RowSampling(0.0, 0, 1.0, 0.0, 0, 0, 0, ())
        admission = Admission(0, -1, 0, (0,), 0, (PADDING_BLOCK,), sampling)
        plan = StepPlan(-1, True, (), (admission,), (Row(0, -1, 0, 0, 1, True),))
        self.launch(plan).wait()
        self.reset()

    @torch.inference_mode()
    def reset(self) -> None:
        if self.on_cpu:
            # A step that broke off did not look at what it had written.
            for slot in range(self._num_slots):
                self._scrub(slot)
        else:
            # A device that is lost says so here, and not in the middle of the next step.
            torch.cuda.synchronize()
        self._batch.clear()

    def close(self) -> None:
        if self.on_cpu:
            # What the runner's mode wanted is no longer wanted by those who come after it.
            torch.set_num_threads(cpu_threads())
        self._model.close()
        self._kv.clear()
