from __future__ import annotations

import torch

from streamgen.layers.context import LayerKV
from streamgen.models.config import DecoderConfig


class LayerGroup:
    """KV tensors of layers that share block tables. All of a full-attention model's layers are one group."""

    def __init__(
        self,
        decoder: DecoderConfig,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        shape = (decoder.num_layers, 2, num_blocks, block_size, decoder.num_kv_heads, decoder.head_dim)
        # Zeros and no garbage: padded attention reads, with weight zero, what was never written.
        self._memory = torch.zeros(shape, dtype=dtype, device=device)
        self.layers = [LayerKV(layer[0], layer[1]) for layer in self._memory]

    def scrub(self, blocks: torch.Tensor) -> None:
        """Replace what is not finite in these blocks, before another request gets them and multiplies it by zero."""
        for layer in self.layers:
            for cache in (layer.keys, layer.values):
                cache[blocks] = cache[blocks].nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
