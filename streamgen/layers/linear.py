from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from streamgen.layers.weight_slot import WeightSlot
from streamgen.parallel.group import ParallelGroup
from streamgen.quantization.numeric_mode import NumericMode


class ColumnParallelLinear:
    """Several projections of one input, merged into one matrix (q, k, v; gate, up). Ranks share each one's outputs.

    `apply` maps [T, in_features] to [T, sum of this rank's outputs], in the order of `outputs`.
    """

    def __init__(
        self,
        in_features: int,
        outputs: tuple[int, ...],
        *,
        bias: bool,
        mode: NumericMode,
        group: ParallelGroup,
        device: torch.device,
    ) -> None:
        self._in_features = in_features
        self._outputs = outputs
        self._parts = [group.shard(size, "a projection's width") for size in outputs]
        sizes = [part.stop - part.start for part in self._parts]
        self._starts = [0, *accumulate(sizes)]
        self._method = mode.linear(sum(sizes), in_features, bias=bias, device=device)
        self.apply = self._method.apply

    def weight_slot(self, index: int) -> WeightSlot:
        """For the weight of projection `index`."""
        start, part = self._starts[index], self._parts[index]
        shape = (self._outputs[index], self._in_features)
        return WeightSlot(shape, lambda values: self._method.load(start, values[part]))

    def bias_slot(self, index: int) -> WeightSlot:
        start, part = self._starts[index], self._parts[index]
        return WeightSlot((self._outputs[index],), lambda values: self._method.load_bias(start, values[part]))


class RowParallelLinear:
    """A projection whose inputs the ranks share; their partial results are summed."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        mode: NumericMode,
        group: ParallelGroup,
        device: torch.device,
    ) -> None:
        self._shape = (out_features, in_features)
        self._part = group.shard(in_features, "a projection's input width")
        self._group = group
        width = self._part.stop - self._part.start
        # Only one rank's part of the sum may carry the bias.
        self._method = mode.linear(out_features, width, bias=bias and group.rank == 0, device=device)
        self.apply = self._method.apply if group.size == 1 else self._apply_and_reduce

    def _apply_and_reduce(self, x: Tensor) -> Tensor:
        return self._group.all_reduce(self._method.apply(x))

    def weight_slot(self) -> WeightSlot:
        return WeightSlot(self._shape, lambda values: self._method.load(0, values[:, self._part]))

    def bias_slot(self) -> WeightSlot:
        return WeightSlot(self._shape[:1], self._load_bias)

    def _load_bias(self, values: Tensor) -> None:
        if self._group.rank == 0:
            self._method.load_bias(0, values)
