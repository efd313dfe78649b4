from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from streamgen.layers.attention import Attention
from streamgen.layers.context import ForwardContext
from streamgen.layers.linear import ColumnParallelLinear, RowParallelLinear
from streamgen.layers.norm import RMSNorm
from streamgen.layers.weight_slot import WeightSlot
from streamgen.models.config import DecoderConfig
from streamgen.parallel.group import ParallelGroup
from streamgen.quantization.numeric_mode import NumericMode
from streamgen_kernels.operators import Operators


class DecoderBlock:
    """Attention and gated MLP, each behind a norm, around a residual stream. Variants are the config's fields."""

    def __init__(
        self,
        config: DecoderConfig,
        layer: int,
        *,
        operators: Operators,
        mode: NumericMode,
        group: ParallelGroup,
        device: torch.device,
    ) -> None:
        self._config = config
        self._operators = operators
        heads = group.shard(config.num_heads, "num_attention_heads")
        kv_heads = group.shard(config.num_kv_heads, "num_key_value_heads")
        self._num_heads, self._num_kv_heads = heads.stop - heads.start, kv_heads.stop - kv_heads.start
        self._head_dim = config.head_dim
        hidden, dim = config.hidden_size, config.head_dim
        kv_width = config.num_kv_heads * dim

        def norm(size: int) -> RMSNorm:
            dtype = mode.activation_dtype
            return RMSNorm(size, config.rms_norm_eps, operators=operators, dtype=dtype, device=device)

        self.input_norm, self.mlp_norm = norm(hidden), norm(hidden)
        self.q_norm = norm(dim) if config.qk_norm else None
        self.k_norm = norm(dim) if config.qk_norm else None
        self.qkv = ColumnParallelLinear(
            hidden,
            (config.num_heads * dim, kv_width, kv_width),
            bias=config.qkv_bias,
            mode=mode,
            group=group,
            device=device,
        )
        self.attention = Attention(dim, operators=operators, group=0, layer=layer)
        self.o = RowParallelLinear(
            config.num_heads * dim, hidden, bias=config.o_bias, mode=mode, group=group, device=device
        )
        inner = config.intermediate_size
        self.gate_up = ColumnParallelLinear(
            hidden, (inner, inner), bias=config.mlp_bias, mode=mode, group=group, device=device
        )
        self.down = RowParallelLinear(inner, hidden, bias=config.mlp_bias, mode=mode, group=group, device=device)

    def __call__(
        self, x: Tensor, residual: Tensor | None, context: ForwardContext, cos_sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(x, residual) → the same of the next block, both [T, hidden]; the stream itself is their sum.

        The addition is left to the next norm, which does both at once. The first block has no residual yet.
        """
        if residual is None:
            normed, residual = self.input_norm.norm(x), x
        else:
            normed, residual = self.input_norm.add_norm(x, residual)
        attended = self._attend(self.qkv.apply(normed), context, cos_sin)
        normed, residual = self.mlp_norm.add_norm(self.o.apply(attended), residual)
        return self.down.apply(self._operators.silu_mul(self.gate_up.apply(normed))), residual

    def _attend(self, qkv: Tensor, context: ForwardContext, cos_sin: Tensor) -> Tensor:
        q_heads, kv_heads = self._num_heads, self._num_kv_heads
        by_head = qkv.view(-1, q_heads + 2 * kv_heads, self._head_dim)
        q, k, v = by_head.split((q_heads, kv_heads, kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm.norm(q), self.k_norm.norm(k)
        self._operators.rope(q, k, context.positions, cos_sin)
        return self.attention(q, k, v, context).flatten(1)

    def weight_slots(self, prefix: str) -> Iterator[tuple[str, WeightSlot]]:
        """Every tensor that the block wants, by Hugging Face's name."""
        yield f"{prefix}input_layernorm.weight", self.input_norm.weight_slot()
        yield f"{prefix}post_attention_layernorm.weight", self.mlp_norm.weight_slot()
        if self.q_norm is not None and self.k_norm is not None:
            yield f"{prefix}self_attn.q_norm.weight", self.q_norm.weight_slot()
            yield f"{prefix}self_attn.k_norm.weight", self.k_norm.weight_slot()
        merged = (
            (self.qkv, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), self._config.qkv_bias),
            (self.gate_up, ("mlp.gate_proj", "mlp.up_proj"), self._config.mlp_bias),
        )
        for linear, names, bias in merged:
            for index, name in enumerate(names):
                yield f"{prefix}{name}.weight", linear.weight_slot(index)
                if bias:
                    yield f"{prefix}{name}.bias", linear.bias_slot(index)
        single = (
            (self.o, "self_attn.o_proj", self._config.o_bias),
            (self.down, "mlp.down_proj", self._config.mlp_bias),
        )
        for projection, name, bias in single:
            yield f"{prefix}{name}.weight", projection.weight_slot()
            if bias:
                yield f"{prefix}{name}.bias", projection.bias_slot()
