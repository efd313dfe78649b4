"""Rotary settings of a config.json → RopeConfig."""

from __future__ import annotations

from typing import cast, get_args

from streamgen.loader.json_file import Fields
from streamgen.models.config import RopeConfig, RopeType

ROPE_TYPES: tuple[str, ...] = get_args(RopeType)


def read_rope(config: Fields, *, max_position_embeddings: int) -> RopeConfig:
    """From `rope_parameters` (transformers 5) or from `rope_scaling` and `rope_theta` (before it).

    Defaults are those of transformers' `modeling_rope_utils`. Raises ModelLoadError for an unknown type, and for
    one whose parameters are missing.
    """
    rope = config.section("rope_parameters") or config.section("rope_scaling") or Fields({}, config.source)
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise rope.error("rotary settings that differ between layers are not supported")
    kind = rope.text("rope_type") or rope.text("type") or "default"
    if kind not in ROPE_TYPES:
        raise rope.error(f"rope type {kind!r} is not supported; supported are {', '.join(ROPE_TYPES)}")
    for source in (rope, config):
        if source.number("partial_rotary_factor", 1.0) != 1.0:
            raise source.error("a partial_rotary_factor other than 1 is not supported")
    theta = (rope if rope.has("rope_theta") else config).number("rope_theta", 10_000.0, low=1.0)
    if kind == "default":
        return RopeConfig(theta=theta)

    original = None
    if kind in ("llama3", "yarn"):
        owner = config if config.has("original_max_position_embeddings") else rope
        original = owner.integer("original_max_position_embeddings", max_position_embeddings)
    default_factor = max_position_embeddings / original if kind == "yarn" and original else None
    factor = rope.number("factor", default_factor, low=1e-3)
    match kind:
        case "llama3":
            low, high = rope.number("low_freq_factor", low=1e-3), rope.number("high_freq_factor", low=1e-3)
            if low >= high:
                raise rope.error(f"low_freq_factor ({low:g}) must be less than high_freq_factor ({high:g})")
            return RopeConfig(
                theta=theta,
                type="llama3",
                factor=factor,
                original_max_position_embeddings=original,
                low_freq_factor=low,
                high_freq_factor=high,
            )
        case "yarn":
            return RopeConfig(
                theta=theta,
                type="yarn",
                factor=factor,
                original_max_position_embeddings=original,
                # Zero means the default here, as it does to transformers.
                beta_fast=rope.number("beta_fast", 32.0) or 32.0,
                beta_slow=rope.number("beta_slow", 1.0) or 1.0,
                attention_factor=rope.optional_number("attention_factor"),
                mscale=rope.optional_number("mscale"),
                mscale_all_dim=rope.optional_number("mscale_all_dim"),
                truncate=rope.flag("truncate", True),
            )
        case _:
            return RopeConfig(theta=theta, type=cast("RopeType", kind), factor=factor)
