"""The persistent batch: what the device knows of each slot, kept up to date by the deltas of the plans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamgen.layers.context import ForwardContext, GroupContext
from streamgen.layers.kv_cache import KVGroup
from streamgen.runtime.sampler import SamplingRows, banned_pairs, is_greedy
from streamgen.runtime.staging import Staging
from streamgen.types import RowSampling, StepPlan

_FLOATS = 3
_INTS = 3


@dataclass(frozen=True)
class StepInputs:
    """One step, ready for the model."""

    token_ids: Tensor
    """[T] int64."""
    context: ForwardContext
    wanted: Tensor
    """[S] int64: indices of the tokens behind which the sampling rows sample."""
    sampling: SamplingRows
    slots: Tensor
    """[S] int64: the sampling rows' slots, whose token tables get what is sampled."""


class InputBatch:
    """Token table, block table and sampling parameters by slot, on the device. Used from the GPU thread only.

    Sampled ids are written to the token table on the device (`write_sampled`), from where the next step reads them:
    the host need not know them to launch it.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        max_model_len: int,
        vocab_size: int,
        kv: list[KVGroup],
        device: torch.device,
        depth: int,
    ) -> None:
        self._kv = kv
        self._vocab_size = vocab_size
        self._device = device
        self._block_size = kv[0].block_size
        self._staging = Staging(device, depth)
        width = -(-(max_model_len + 1) // self._block_size)
        # One column more than a request's tokens: a ghost row samples behind the last one.
        self._tokens = torch.zeros(num_slots, max_model_len + 1, dtype=torch.int32, device=device)
        self._blocks = torch.zeros(num_slots, width, dtype=torch.int32, device=device)
        self._floats = torch.zeros(num_slots, _FLOATS, dtype=torch.float32, device=device)
        self._ints = torch.zeros(num_slots, _INTS, dtype=torch.int64, device=device)
        self._num_blocks = [0] * num_slots
        self._sampling: dict[int, RowSampling] = {}

    def clear(self) -> None:
        """Forget all slots. Their rows need no erasing: what is read of a row is what its next admission writes."""
        self._sampling.clear()
        self._num_blocks = [0] * len(self._num_blocks)

    def update(self, plan: StepPlan) -> None:
        """Apply a plan's releases, admissions and new blocks."""
        if plan.full:
            self.clear()
        for slot in plan.released:
            self._sampling.pop(slot, None)
        table_writes: list[tuple[int, int, tuple[int, ...]]] = []
        for admission in plan.admitted:
            slot = admission.slot
            self._sampling[slot] = admission.sampling
            table_writes.append((slot, 0, admission.block_ids))
            self._num_blocks[slot] = len(admission.block_ids)
        for row in plan.rows:
            if row.new_block_ids:
                table_writes.append((row.slot, self._num_blocks[row.slot], row.new_block_ids))
                self._num_blocks[row.slot] += len(row.new_block_ids)
        if table_writes:
            self._write_blocks(table_writes)
        if plan.admitted:
            self._write_admissions(plan)

    def _write_blocks(self, writes: list[tuple[int, int, tuple[int, ...]]]) -> None:
        sizes = [len(blocks) for _, _, blocks in writes]
        slots = np.repeat(np.array([slot for slot, _, _ in writes], np.int64), sizes)
        columns = np.concatenate([np.arange(start, start + len(blocks)) for _, start, blocks in writes])
        blocks = np.array([block for _, _, blocks in writes for block in blocks], np.int64)
        where, column, values = self._staging.upload([slots, columns, blocks])
        self._blocks[where, column] = values.to(torch.int32)

    def _write_admissions(self, plan: StepPlan) -> None:
        admitted = plan.admitted
        sizes = [len(admission.token_ids) for admission in admitted]
        slots = np.array([admission.slot for admission in admitted], np.int64)
        tokens = np.array([token for admission in admitted for token in admission.token_ids], np.int64)
        columns = np.concatenate([np.arange(size) for size in sizes])
        sampling = [admission.sampling for admission in admitted]
        floats = np.array([(params.temperature, params.top_p, params.min_p) for params in sampling], np.float64)
        ints = np.array([(max(params.top_k, 0), params.seed, params.sibling) for params in sampling], np.int64)
        where, row, column, values, float_bits, int_values = self._staging.upload(
            [slots, np.repeat(slots, sizes), columns, tokens, floats.view(np.int64), ints]
        )
        self._tokens[row, column] = values.to(torch.int32)
        self._floats[where] = float_bits.view(torch.float64).to(torch.float32)
        self._ints[where] = int_values

    def inputs(self, plan: StepPlan) -> StepInputs:
        """What the model is given for the plan's rows."""
        rows = plan.rows
        sizes = np.array([row.num_tokens for row in rows], np.int64)
        starts = np.array([row.start for row in rows], np.int64)
        slots = np.array([row.slot for row in rows], np.int64)
        ends = np.cumsum(sizes)
        total = int(ends[-1])
        row_of_token = np.repeat(np.arange(len(rows)), sizes)
        positions = np.arange(total) + (starts - (ends - sizes))[row_of_token]
        query_start = np.concatenate((np.zeros(1, np.int64), ends))
        context_lens = starts + sizes
        sampling = [index for index, row in enumerate(rows) if row.samples]
        wanted = ends[sampling] - 1
        sampled_positions = context_lens[sampling]

        host: list[NDArray[np.int64]] = [
            slots,
            slots[row_of_token],
            positions,
            query_start,
            context_lens,
            wanted,
            slots[sampling],
            sampled_positions,
        ]
        params = [self._sampling[rows[index].slot] for index in sampling]
        banned = banned_pairs(params, sampled_positions.tolist(), self._vocab_size)
        if banned is not None:
            host += [np.array(part, np.int64) for part in banned]
        device = self._staging.upload(host)
        row_slots, token_slots, positions_, query_start_, context_lens_, wanted_, sampling_slots, sampled_at = device[
            :8
        ]

        max_context_len = int(context_lens.max())
        block_table = self._blocks[:, : -(-max_context_len // self._block_size)].index_select(0, row_slots)
        # An index beyond a row's own blocks may be a stale one; it is only read with weight zero, and KV is finite.
        block = self._blocks[token_slots, positions_ // self._block_size].to(torch.int64)
        slot_mapping = block * self._block_size + positions_ % self._block_size
        context = ForwardContext(
            positions=positions_,
            query_start=query_start_.to(torch.int32),
            context_lens=context_lens_.to(torch.int32),
            max_query_len=int(sizes.max()),
            max_context_len=max_context_len,
            groups=[GroupContext(group.layers, block_table, slot_mapping) for group in self._kv],
        )
        return StepInputs(
            token_ids=self._tokens[token_slots, positions_].to(torch.int64),
            context=context,
            wanted=wanted_,
            sampling=self._sampling_rows(
                sampling_slots,
                sampled_at,
                greedy_only=all(map(is_greedy, params)),
                banned=None if banned is None else (device[8], device[9]),
            ),
            slots=sampling_slots,
        )

    def _sampling_rows(
        self, slots: Tensor, position: Tensor, *, greedy_only: bool, banned: tuple[Tensor, Tensor] | None
    ) -> SamplingRows:
        temperature, top_p, min_p = self._floats.index_select(0, slots).unbind(1)
        top_k, seed, sibling = self._ints.index_select(0, slots).unbind(1)
        return SamplingRows(
            temperature=temperature,
            top_k=top_k.to(torch.int32),
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            sibling=sibling.to(torch.int32),
            position=position,
            greedy_only=greedy_only,
            banned=banned,
        )

    def write_sampled(self, inputs: StepInputs, sampled: Tensor) -> None:
        """Put the ids sampled [S] where the next step reads them. A failed row's -1 becomes a harmless 0."""
        self._tokens[inputs.slots, inputs.sampling.position] = sampled.clamp_min(0).to(torch.int32)

    def blocks_of(self, slot: int) -> Tensor:
        """Ids, int64, of the blocks that a slot holds."""
        return self._blocks[slot, : self._num_blocks[slot]].to(torch.int64)
