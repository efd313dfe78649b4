from __future__ import annotations

import torch
from torch import Tensor

from streamgen.layers.weight_slot import WeightSlot
from streamgen.quantization.numeric_mode import NumericMode


class VocabMatrix:
    """A matrix [vocab_size, hidden_size]: an embedding, an output head, or, where they are tied, both at once."""

    def __init__(self, vocab_size: int, hidden_size: int, *, mode: NumericMode, device: torch.device) -> None:
        self._shape = (vocab_size, hidden_size)
        self._method = mode.linear(vocab_size, hidden_size, bias=False, device=device)
        self.lookup = self._method.lookup

    def logits(self, hidden: Tensor) -> Tensor:
        """Of hidden [R, hidden_size]: float32 [R, vocab_size]."""
        return self._method.apply(hidden).to(torch.float32)

    def weight_slot(self) -> WeightSlot:
        return WeightSlot(self._shape, lambda values: self._method.load(0, values))
