from __future__ import annotations

import torch
from torch import Tensor

from streamgen.layers.context import ForwardContext
from streamgen.layers.embedding import VocabMatrix
from streamgen.layers.kv_cache import LayerGroup
from streamgen.layers.norm import RMSNorm
from streamgen.layers.rotary import cos_sin_table
from streamgen.layers.weight_slot import WeightSlot
from streamgen.models.config import DecoderConfig
from streamgen.models.decoder_block import DecoderBlock
from streamgen.parallel.group import SINGLE, ParallelGroup
from streamgen.quantization.numeric_mode import NumericMode
from streamgen_kernels.operators import Operators


class Decoder:
    """A decoder-only transformer over the flattened tokens of a step's rows: a `Model`."""

    def __init__(
        self,
        config: DecoderConfig,
        *,
        operators: Operators,
        mode: NumericMode,
        device: torch.device,
        max_model_len: int,
        group: ParallelGroup = SINGLE,
    ) -> None:
        self.config = config
        self.mode = mode
        self.device = device
        self.embedding = VocabMatrix(config.vocab_size, config.hidden_size, mode=mode, device=device)
        self.head = (
            self.embedding
            if config.tie_word_embeddings
            else VocabMatrix(config.vocab_size, config.hidden_size, mode=mode, device=device)
        )
        self.blocks = [
            DecoderBlock(config, layer, operators=operators, mode=mode, group=group, device=device)
            for layer in range(config.num_layers)
        ]
        self.norm = RMSNorm(
            config.hidden_size,
            config.rms_norm_eps,
            operators=operators,
            dtype=mode.activation_dtype,
            device=device,
        )
        table = cos_sin_table(config.rope, config.head_dim, config.max_position_embeddings, max_model_len)
        self.cos_sin = table.to(device)

    def new_kv(self, num_blocks: int, block_size: int) -> LayerGroup:
        return LayerGroup(
            num_layers=self.config.num_layers,
            num_blocks=num_blocks,
            block_size=block_size,
            kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            dtype=self.mode.activation_dtype,
            device=self.device,
        )

    def forward(self, token_ids: Tensor, context: ForwardContext, wanted: Tensor) -> Tensor:
        """token_ids [T] → hidden states, normed, of the tokens whose indices are `wanted` [R]: [R, hidden]."""
        x, residual = self.embedding.lookup(token_ids), None
        for block in self.blocks:
            x, residual = block(x, residual, context, self.cos_sin)
        assert residual is not None
        # A norm looks at one token at a time, so those whose logits nobody wants are dropped before it.
        return self.norm.add_norm(x.index_select(0, wanted), residual.index_select(0, wanted))[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Of hidden [R, hidden]: float32 [R, vocab_size]."""
        return self.head.logits(hidden)

    def close(self) -> None:
        pass

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Every tensor that the model wants, by Hugging Face's name."""
        slots = {
            "model.embed_tokens.weight": self.embedding.weight_slot(),
            "model.norm.weight": self.norm.weight_slot(),
        }
        if not self.config.tie_word_embeddings:
            slots["lm_head.weight"] = self.head.weight_slot()
        for layer, block in enumerate(self.blocks):
            slots.update(block.weight_slots(f"model.layers.{layer}."))
        return slots
