from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from streamgen.layers.context import ForwardContext
from streamgen.layers.kv_cache import KVGroup
from streamgen.layers.weight_slot import WeightSlot
from streamgen.models.config import DecoderConfig


class Model(Protocol):
    """A decoder as the runner sees it."""

    config: DecoderConfig
    device: torch.device

    def new_kv(self, num_blocks: int, block_size: int) -> KVGroup:
        """Memory for keys and values, in the model's own format."""

    def forward(self, token_ids: Tensor, context: ForwardContext, wanted: Tensor) -> Tensor:
        """token_ids [T] → hidden states, normed, of the tokens whose indices are `wanted` [R]: [R, hidden]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Of hidden [R, hidden]: float32 [R, vocab_size], which the caller may write to until the next call."""

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Every tensor that the model wants, by Hugging Face's name."""

    def close(self) -> None:
        """Free what is not memory."""
