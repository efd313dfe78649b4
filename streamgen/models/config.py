"""What a decoder-only transformer looks like, as data: the one record that loaders make and models are built from."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamgen.layers.rope_config import RopeConfig, RopeType

__all__ = ["DecoderConfig", "GenerationDefaults", "RopeConfig", "RopeType"]


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Shape and variant of a decoder. Two architectures that differ in a norm and a bias differ here in two fields."""

    architecture: str
    """Hugging Face's class name, e.g. `LlamaForCausalLM`."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig = field(default_factory=RopeConfig)
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm on each head of q and k, before rope (Qwen3)."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """From generation_config.json if it has them, else from config.json."""


@dataclass(frozen=True, kw_only=True)
class GenerationDefaults:
    """Sampling defaults of a model, from its generation_config.json; None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
