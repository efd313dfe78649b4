"""Hugging Face's config.json → DecoderConfig."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from streamgen.errors import ModelLoadError
from streamgen.loader.json_file import Fields, read_json_object
from streamgen.loader.rope_config import read_rope
from streamgen.models.config import DecoderConfig


@dataclass(frozen=True)
class Architecture:
    """What an architecture's config leaves unsaid. Defaults are those of its config class in transformers."""

    model_type: str
    qk_norm: bool = False
    qkv_bias: bool | None = None
    """None: `attention_bias` says it, of q, k, v and o alike."""
    mlp_bias_in_config: bool = False
    head_dim: int | None = None
    """None: hidden_size / num_attention_heads."""
    max_position_embeddings: int = 32_768
    sliding_window: int | None = None


ARCHITECTURES = {
    "LlamaForCausalLM": Architecture("llama", mlp_bias_in_config=True, max_position_embeddings=2_048),
    "Qwen2ForCausalLM": Architecture("qwen2", qkv_bias=True, sliding_window=4_096),
    "Qwen3ForCausalLM": Architecture("qwen3", qk_norm=True, head_dim=128, sliding_window=4_096),
}

MAX_LAYERS = 1_024
MAX_HEADS = 4_096
MAX_HEAD_DIM = 1_024
MAX_WIDTH = 2**20
MAX_VOCAB = 2**18
"""What the samplers take: `MAX_VOCAB_SIZE` of `streamgen_kernels.reference.sampling`, which would import torch here."""


def read_hf_config(path: Path) -> DecoderConfig:
    """Read a config.json. Raises ModelLoadError for what is missing, contradictory or not supported.

    `eos_token_ids` are the config's own; a generation_config.json may know better.
    """
    config = Fields(read_json_object(path), path)
    name = _architecture(config)
    known = ARCHITECTURES[name]
    if config.section("quantization_config") is not None:
        raise config.error("weights quantized by quantization_config are not supported; take the unquantized model")
    activation = config.text("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        raise config.error(f"hidden_act {activation!r} is not supported; {name} is served with silu")

    hidden_size = config.integer("hidden_size", high=MAX_WIDTH)
    num_layers = config.integer("num_hidden_layers", high=MAX_LAYERS)
    num_heads = config.integer("num_attention_heads", high=MAX_HEADS)
    num_kv_heads = config.integer("num_key_value_heads", num_heads, high=MAX_HEADS)
    head_dim = config.integer("head_dim", known.head_dim or max(hidden_size // num_heads, 1), high=MAX_HEAD_DIM)
    max_position_embeddings = config.integer("max_position_embeddings", known.max_position_embeddings)
    if num_heads % num_kv_heads:
        raise config.error(
            f"num_attention_heads ({num_heads}) is not a multiple of num_key_value_heads ({num_kv_heads})"
        )
    if head_dim % 2:
        raise config.error(f"head_dim ({head_dim}) is odd, which rotary embedding does not allow")
    if not config.has("head_dim") and known.head_dim is None and hidden_size % num_heads:
        raise config.error(f"hidden_size ({hidden_size}) is not a multiple of num_attention_heads ({num_heads})")
    _refuse_sliding_window(config, known, num_layers, max_position_embeddings)

    attention_bias = config.flag("attention_bias", False)
    bos = config.token_ids("bos_token_id")
    return DecoderConfig(
        architecture=name,
        vocab_size=config.integer("vocab_size", high=MAX_VOCAB),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size", high=MAX_WIDTH),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_position_embeddings,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6, high=1.0),
        rope=read_rope(config, max_position_embeddings=max_position_embeddings),
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias if known.qkv_bias is None else known.qkv_bias,
        o_bias=attention_bias if known.qkv_bias is None else False,
        mlp_bias=config.flag("mlp_bias", False) if known.mlp_bias_in_config else False,
        qk_norm=known.qk_norm,
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=config.token_ids("eos_token_id"),
    )


def unsupported_architecture(source: object, name: object) -> ModelLoadError:
    return ModelLoadError(
        f"{source}: the architecture {name!r} is not supported. Supported: {', '.join(sorted(ARCHITECTURES))}."
    )


def _architecture(config: Fields) -> str:
    named = config.values.get("architectures")
    if isinstance(named, list) and named:
        for name in named:
            if isinstance(name, str) and name in ARCHITECTURES:
                return name
        raise unsupported_architecture(config.source, named[0])
    model_type = config.values.get("model_type")
    for name, known in ARCHITECTURES.items():
        if model_type == known.model_type:
            return name
    raise unsupported_architecture(config.source, model_type)


def _refuse_sliding_window(config: Fields, known: Architecture, num_layers: int, max_length: int) -> None:
    """A window that some layer would use within the model's length changes the result, so it is not ignored."""
    message = "sliding-window attention is in use, which is not supported"
    layer_types = config.values.get("layer_types")
    if layer_types is not None:
        if not isinstance(layer_types, list):
            raise config.error("layer_types must be a list")
        unknown = [kind for kind in layer_types if kind not in ("full_attention", "sliding_attention")]
        if unknown:
            raise config.error(f"layers of type {unknown[0]!r} are not supported")
    if known.sliding_window is None:
        # Not a setting of this architecture's class, which would ignore it: a derived model means it, though.
        window = config.optional_number("sliding_window")
        if (window is not None and window < max_length) or (layer_types and "sliding_attention" in layer_types):
            raise config.error(message)
        return
    if not config.flag("use_sliding_window", False):
        return
    if config.number("sliding_window", known.sliding_window) >= max_length:
        return
    if layer_types is None:
        in_use = config.integer("max_window_layers", 28, low=0) < num_layers
    else:
        in_use = "sliding_attention" in layer_types
    if in_use:
        raise config.error(message)
