"""A GGUF file's metadata and tensor table → DecoderConfig."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from streamgen.loader.generation import sampling_defaults
from streamgen.loader.gguf_file import GGUFFile
from streamgen.loader.hf_config import (
    ARCHITECTURES,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    unsupported_architecture,
)
from streamgen.loader.json_file import Fields
from streamgen.models.config import DecoderConfig, GenerationDefaults, RopeConfig

LLAMA3_DEFAULTS = (8_192, 1.0, 4.0)
"""original_max_position_embeddings, low_freq_factor and high_freq_factor of every Llama 3 that Meta published."""


def read_gguf_config(file: GGUFFile, *, bos_token_id: int | None, eos_token_ids: tuple[int, ...]) -> DecoderConfig:
    """Raises ModelLoadError for an architecture or variant that is not supported, and for missing keys."""
    metadata = Fields(file.metadata, file.path)
    arch = metadata.text("general.architecture")
    name = next((name for name, known in ARCHITECTURES.items() if known.model_type == arch), None)
    if name is None or arch is None:
        raise unsupported_architecture(file.path, arch)
    if metadata.integer("split.count", 1, low=0) > 1:
        raise metadata.error("a model split over several GGUF files must be joined first (llama-gguf-split --merge)")
    config = Fields(_by_short_name(file.metadata, arch), f"{file.path}: {arch}")
    if config.integer("expert_count", 0, low=0) > 0:
        raise config.error("mixtures of experts are not supported")

    embeddings = file.tensors.get("token_embd.weight")
    if embeddings is None or len(embeddings.shape) != 2:
        raise metadata.error("the tensor token_embd.weight is missing, or no matrix")
    vocab_size = embeddings.shape[0]
    if vocab_size > MAX_VOCAB:
        raise metadata.error(f"the vocabulary has {vocab_size} tokens; more than {MAX_VOCAB} are not supported")
    num_heads = config.integer("attention.head_count", high=MAX_HEADS)
    num_kv_heads = config.integer("attention.head_count_kv", num_heads, high=MAX_HEADS)
    hidden_size = config.integer("embedding_length", high=MAX_WIDTH)
    head_dim = config.integer("attention.key_length", max(hidden_size // num_heads, 1), high=MAX_HEAD_DIM)
    max_position_embeddings = config.integer("context_length")
    if num_heads % num_kv_heads:
        raise config.error(f"{num_heads} heads are no multiple of {num_kv_heads} key-value heads")
    if head_dim % 2:
        raise config.error(f"heads of {head_dim}, an odd number, do not allow rotary embedding")
    if config.integer("attention.value_length", head_dim) != head_dim:
        raise config.error("keys and values of different lengths are not supported")
    if config.integer("rope.dimension_count", head_dim) != head_dim:
        raise config.error("rotary embedding of a part of each head is not supported")
    if 0 < config.number("attention.sliding_window", 0.0) < max_position_embeddings:
        raise config.error("sliding-window attention is in use, which is not supported")
    return DecoderConfig(
        architecture=name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=config.integer("feed_forward_length", high=MAX_WIDTH),
        num_layers=config.integer("block_count", high=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_position_embeddings,
        rms_norm_eps=config.number("attention.layer_norm_rms_epsilon", high=1.0),
        rope=_read_rope(file, config, head_dim, max_position_embeddings),
        tie_word_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        qk_norm=ARCHITECTURES[name].qk_norm,
        bos_token_id=bos_token_id,
        eos_token_ids=eos_token_ids,
    )


def read_gguf_sampling(file: GGUFFile) -> GenerationDefaults:
    """Sampling defaults that newer converters keep under `general.sampling`."""
    return sampling_defaults(
        Fields(file.metadata, file.path),
        temperature="general.sampling.temp",
        top_p="general.sampling.top_p",
        top_k="general.sampling.top_k",
        min_p="general.sampling.min_p",
        max_tokens="general.sampling.max_tokens",
    )


def _by_short_name(metadata: dict[str, Any], arch: str) -> dict[str, Any]:
    """The keys below `arch`. An array with one value a layer becomes that value if it is the same everywhere."""
    short = {}
    for key, value in metadata.items():
        if key.startswith(arch + "."):
            uniform = isinstance(value, np.ndarray) and len(value) > 0 and (value == value[0]).all()
            short[key[len(arch) + 1 :]] = value[0].item() if uniform else value
    return short


def _read_rope(file: GGUFFile, config: Fields, head_dim: int, max_position_embeddings: int) -> RopeConfig:
    theta = config.number("rope.freq_base", 10_000.0, low=1.0)
    factors = file.tensors.get("rope_freqs.weight")
    scale = config.number("rope.scaling.factor", config.number("rope.scale_linear", 1.0))
    # A factor of 0 is how llama.cpp's converter wrote that there is none; without a type, a factor is a linear one.
    kind = config.text("rope.scaling.type") or ("none" if scale in (0.0, 1.0) else "linear")
    if factors is not None:
        if factors.type.name != "F32" or factors.shape != (head_dim // 2,) or (kind, scale) != ("none", 1.0):
            raise config.error("the tensor rope_freqs.weight is not one that Llama 3's rope scaling makes")
        values = file.data(factors).view(np.float32).reshape(-1)
        return _llama3_rope(values.astype(np.float64), theta, config)
    if kind == "none" or (kind == "linear" and scale in (0.0, 1.0)):
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, type="linear", factor=scale)
    if kind == "yarn":
        factor = config.number("rope.scaling.factor", low=1e-3)
        # llama.cpp multiplies YaRN's own attention factor by this, where Hugging Face's setting replaces it.
        extra = config.number("rope.scaling.attn_factor", 1.0)
        return RopeConfig(
            theta=theta,
            type="yarn",
            factor=factor,
            original_max_position_embeddings=config.integer(
                "rope.scaling.original_context_length", max_position_embeddings
            ),
            beta_fast=config.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=config.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=None if extra == 1.0 else extra * (1.0 + 0.1 * math.log(max(factor, 1.0))),
        )
    raise config.error(f"rope scaling {kind!r} is not supported; supported are none, linear, yarn and Llama 3's")


def _llama3_factors(
    dim: int, theta: float, factor: float, original: float, low: float, high: float
) -> npt.NDArray[np.float64]:
    """By how much Llama 3's scaling divides each frequency: transformers' `_compute_llama3_parameters`, inverted."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, dim, 2) / dim)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / factor + smooth)


def _llama3_rope(factors: npt.NDArray[np.float64], theta: float, config: Fields) -> RopeConfig:
    """Find the settings behind the factors, which are all that a GGUF file keeps of Llama 3's rope scaling.

    The converter writes 1 for short wavelengths, `factor` for long ones and a blend between, in which
    s = (original / wavelength - low) / (high - low) goes from 0 to 1. So s is linear in 1 / wavelength, and two points
    give original / (high - low) and low / (high - low): all that matters, as the three scale together. The published
    settings are tried first, and then their `low` and `high` with another length, which one point tells.
    """
    dim, factor = 2 * len(factors), float(factors.max())
    if np.isfinite(factors).all() and factors.min() > 0.99:
        if factor < 1.0 + 1e-6:
            return RopeConfig(theta=theta)
        candidates = [LLAMA3_DEFAULTS]
        blended = (factors > 1.0 + 1e-4) & (factors < factor * (1 - 1e-4))
        inverse_wavelengths = theta ** -(np.arange(0, dim, 2) / dim)[blended] / (2 * math.pi)
        smooth = (1.0 / factors[blended] - 1.0 / factor) / (1.0 - 1.0 / factor)
        if len(smooth):
            _, low, high = LLAMA3_DEFAULTS
            candidates.append((round(float((low + (high - low) * smooth[0]) / inverse_wavelengths[0])), low, high))
        if len(smooth) > 1:
            slope, offset = np.polyfit(inverse_wavelengths, smooth, 1)
            if slope > 0 and offset < 0:
                candidates.append((round(float(-slope / offset)), 1.0, 1.0 - 1.0 / float(offset)))
        for original, low, high in candidates:
            if np.allclose(_llama3_factors(dim, theta, factor, original, low, high), factors, rtol=1e-3):
                return RopeConfig(
                    theta=theta,
                    type="llama3",
                    factor=factor,
                    original_max_position_embeddings=original,
                    low_freq_factor=low,
                    high_freq_factor=high,
                )
    raise config.error("the tensor rope_freqs.weight holds factors that Llama 3's rope scaling does not make")
