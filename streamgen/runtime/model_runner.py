from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from streamgen.layers.kv_cache import KVGroup
from streamgen.models.model import Model
from streamgen.runtime.input_batch import InputBatch
from streamgen.runtime.sampler import Sampler
from streamgen.scheduling.block_pool import PADDING_BLOCK
from streamgen.types import Admission, Row, RowSampling, StepPlan, StepResult


@dataclass(frozen=True)
class LaunchedStep:
    """A step on its way: `sampled` is on the host, or will be once `arrived` has happened."""

    plan: StepPlan
    sampled: Tensor | None
    arrived: torch.cuda.Event | None
    started: float

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
            elif row.samples:
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
        hidden = self._model.forward(inputs.token_ids, inputs.context, inputs.wanted)
        if not len(inputs.wanted):
            return LaunchedStep(plan, None, self._record(), started)
        sampled = self._sampler(self._model.logits(hidden), inputs.sampling)
        self._batch.write_sampled(inputs, sampled)
        if self._model.device.type == "cpu":
            self._scrub_failed(plan, sampled)
            return LaunchedStep(plan, sampled, None, started)
        on_host = torch.empty(sampled.shape, dtype=sampled.dtype, pin_memory=True)
        on_host.copy_(sampled, non_blocking=True)
        return LaunchedStep(plan, on_host, self._record(), started)

    def _record(self) -> torch.cuda.Event | None:
        if self._model.device.type == "cpu":
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def _scrub_failed(self, plan: StepPlan, sampled: Tensor) -> None:
        """What a failed row wrote must not reach those who get its blocks next.

        The CPU's attention on floats multiplies what lies behind a row's end by zero, which does not remove NaN. Other
        kernels never read it.
        """
        if bool((sampled >= 0).all()):
            return
        slots = [row.slot for row in plan.rows if row.samples]
        for slot, token in zip(slots, sampled.tolist(), strict=True):
            if token < 0:
                for group in self._kv:
                    group.scrub(self._batch.blocks_of(slot))

    def warm_up(self) -> None:
        """Compute one token in the padding block, so that the first request does not pay for what is prepared once."""
        sampling = RowSampling(0.0, 0, 1.0, 0.0, 0, 0, 0, ())
        admission = Admission(0, -1, 0, (0,), 0, (PADDING_BLOCK,), sampling)
        plan = StepPlan(-1, True, (), (admission,), (Row(0, -1, 0, 0, 1, True),))
        self.launch(plan).wait()
        self.reset()

    def reset(self) -> None:
        if not self.on_cpu:
            # A device that is lost says so here, and not in the middle of the next step.
            torch.cuda.synchronize()
        self._batch.clear()

    def close(self) -> None:
        self._model.close()
        self._kv.clear()
