from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from streamgen.layers.context import LayerKV


class KVGroup(Protocol):
    """Keys and values of the layers that share block tables. All of a full-attention model's layers are one group."""

    block_size: int
    layers: Sequence[LayerKV]
    """What attention reads and writes; empty where the model keeps that to itself."""

    def scrub(self, blocks: Tensor) -> None:
        """Make blocks [n] int64 harmless to whoever gets them next, although what is in them is not finite."""


class LayerGroup:
    """A KVGroup in plain tensors."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        # Zeros and no garbage: padded attention reads, with weight zero, what was never written.
        self._memory = torch.zeros(
            (num_layers, 2, num_blocks, block_size, kv_heads, head_dim), dtype=dtype, device=device
        )
        self.layers: Sequence[LayerKV] = [LayerKV(layer[0], layer[1]) for layer in self._memory]

    def scrub(self, blocks: Tensor) -> None:
        """Replace what is not finite in these blocks, before another request gets them and multiplies it by zero."""
        for layer in self.layers:
            for cache in (layer.keys, layer.values):
                cache[blocks] = cache[blocks].nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
