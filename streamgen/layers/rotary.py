"""Rotary embedding: the table of cosines and sines for each of Hugging Face's kinds, as transformers 5 computes them.

Everything is float32, in transformers' order of operations, so that float32 results agree to the last bit or two.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from streamgen.layers.rope_config import RopeConfig


def cos_sin_table(rope: RopeConfig, head_dim: int, max_position_embeddings: int, length: int) -> Tensor:
    """Row p: cosines, then sines, of position p's head_dim / 2 angles: float32 [length, head_dim].

    `max_position_embeddings` is the config's; only "dynamic" looks at it.
    """
    positions = torch.arange(length, dtype=torch.float32)
    if rope.type == "dynamic":
        angles = positions[:, None] * _dynamic(rope, head_dim, max_position_embeddings, length)
        scale = 1.0
    else:
        inverse, scale = inverse_frequencies(rope, head_dim)
        angles = positions[:, None] * inverse
    return torch.cat((angles.cos() * scale, angles.sin() * scale), dim=-1)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """(float32 [head_dim / 2], factor on cosines and sines) of the kinds that treat every position alike."""
    match rope.type:
        case "default":
            return _plain(rope.theta, head_dim), 1.0
        case "linear":
            return _plain(rope.theta, head_dim) / rope.factor, 1.0
        case "llama3":
            return _llama3(rope, head_dim), 1.0
        case "yarn":
            return _yarn(rope, head_dim), _yarn_scale(rope)
        case "dynamic":
            raise ValueError("dynamic frequencies depend on the position")


def _plain(theta: float, head_dim: int) -> Tensor:
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return torch.as_tensor(1.0 / theta**exponent)


def _dynamic(rope: RopeConfig, head_dim: int, max_position_embeddings: int, length: int) -> Tensor:
    """NTK-aware scaling that grows with the sequence: [length, head_dim / 2], a row for each position.

    A token at position p is rotated by the frequencies for a sequence of p + 1 tokens, which is what transformers does
    token by token. It must not depend on how a prompt was cut into chunks, since blocks of KV are shared.
    """
    sequence = torch.arange(1, length + 1).clamp_min(max_position_embeddings)
    growth = rope.factor * sequence / max_position_embeddings - (rope.factor - 1)
    base = rope.theta * growth ** (head_dim / (head_dim - 2))
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / base[:, None] ** exponent


def _llama3(rope: RopeConfig, head_dim: int) -> Tensor:
    """Llama 3.1: long wavelengths are stretched by the factor, short ones are kept, those between are blended."""
    original = rope.original_max_position_embeddings
    assert original is not None
    inverse = _plain(rope.theta, head_dim)
    wavelength = 2 * math.pi / inverse
    longest, shortest = original / rope.low_freq_factor, original / rope.high_freq_factor
    stretched = torch.where(wavelength > longest, inverse / rope.factor, inverse)
    blend = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * stretched / rope.factor + blend * stretched
    between = ~(wavelength < shortest) & ~(wavelength > longest)
    return torch.where(between, blended, stretched)


def _yarn(rope: RopeConfig, head_dim: int) -> Tensor:
    """YaRN (Peng et al. 2023): interpolate the low frequencies, keep the high ones, ramp between."""
    original = rope.original_max_position_embeddings
    assert original is not None

    def dimension(rotations: float) -> float:
        return (head_dim * math.log(original / (rotations * 2 * math.pi))) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    frequencies = rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    kept, interpolated = 1.0 / frequencies, 1.0 / (rope.factor * frequencies)
    weight = 1 - ramp
    return torch.as_tensor(interpolated * (1 - weight) + kept * weight)


def _yarn_scale(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
