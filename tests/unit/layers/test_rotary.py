"""The tables against transformers' own functions, and mutants of each factor."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from streamgen.layers.rope_config import RopeConfig
from streamgen.layers.rotary import cos_sin_table

LENGTH, HEAD_DIM, TRAINED = 300, 32, 128
# A frequency that differs in its last bit has turned 300 positions on by this much.
TOLERANCE = 5e-5
ROPES = {
    "default": RopeConfig(theta=5000.0),
    "linear": RopeConfig(type="linear", factor=3.0),
    "dynamic": RopeConfig(type="dynamic", factor=2.0),
    "llama3": RopeConfig(type="llama3", theta=5e5, factor=8.0, original_max_position_embeddings=64),
    "llama3_wide": RopeConfig(
        type="llama3", factor=4.0, original_max_position_embeddings=100, low_freq_factor=0.5, high_freq_factor=9.0
    ),
    "yarn": RopeConfig(type="yarn", factor=4.0, original_max_position_embeddings=64),
    "yarn_attention_factor": RopeConfig(
        type="yarn", factor=4.0, original_max_position_embeddings=64, attention_factor=0.8
    ),
    "yarn_mscale": RopeConfig(
        type="yarn", factor=40.0, original_max_position_embeddings=64, mscale=1.2, mscale_all_dim=0.6, truncate=False
    ),
    "yarn_narrow": RopeConfig(
        type="yarn", factor=2.0, original_max_position_embeddings=64, beta_fast=3.0, beta_slow=2.9
    ),
}


def theirs(rope):
    names = {
        "linear": ("factor",),
        "dynamic": ("factor",),
        "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
        "yarn": (
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ),
    }.get(rope.type, ())
    parameters = {name: getattr(rope, name) for name in names if getattr(rope, name) is not None}
    config = LlamaConfig(
        hidden_size=HEAD_DIM,
        num_attention_heads=1,
        max_position_embeddings=TRAINED,
        rope_parameters={"rope_type": rope.type, "rope_theta": rope.theta, **parameters},
    )
    embedding = LlamaRotaryEmbedding(config)
    rows = []
    # One position at a time, as in decoding: "dynamic" looks at the longest so far.
    for position in range(LENGTH):
        cos, sin = embedding(torch.zeros(1), torch.tensor([[position]]))
        half = HEAD_DIM // 2
        rows.append(torch.cat((cos[0, 0, :half], sin[0, 0, :half])))
    return torch.stack(rows)


@pytest.mark.parametrize("name", ROPES)
def test_the_table_is_transformers(name):
    assert torch.allclose(cos_sin_table(ROPES[name], HEAD_DIM, TRAINED, LENGTH), theirs(ROPES[name]), atol=TOLERANCE)


_SCALED = ("theta", "factor", "original_max_position_embeddings")
MEANS = {
    "default": ("theta",),
    "linear": ("theta", "factor"),
    "dynamic": ("theta", "factor"),
    "llama3": (*_SCALED, "low_freq_factor", "high_freq_factor"),
    "yarn": (*_SCALED, "beta_slow"),
}


@pytest.mark.parametrize("name, field", [(name, field) for name, rope in ROPES.items() for field in MEANS[rope.type]])
def test_a_wrong_parameter_is_caught(name, field):
    rope = ROPES[name]
    wrong = replace(rope, **{field: getattr(rope, field) * 2})
    assert not torch.allclose(cos_sin_table(wrong, HEAD_DIM, TRAINED, LENGTH), theirs(rope), atol=TOLERANCE)
