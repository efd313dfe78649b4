"""Tiny random models of every shape, written by transformers and read by us."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from streamgen.loader.hf_config import read_hf_config
from streamgen.loader.safetensors_files import SafetensorsWeights
from streamgen.models.config import DecoderConfig
from streamgen.models.decoder import Decoder
from streamgen.models.int8_decoder import Int8Decoder
from streamgen.models.registry import build_model
from streamgen.models.rotation import RotatedWeights, rotated_config
from streamgen.models.weights import load_weights
from streamgen.quantization.numeric_mode import ModeName, NumericMode
from streamgen.runtime.model_runner import ModelRunner
from streamgen.runtime.sampler import Sampler
from streamgen_kernels.operators import Operators, get_operators

CPU = torch.device("cpu")
BLOCK_SIZE = 4
SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    # Wide enough for greedy choices to be clear, and for attention to look at single tokens.
    "initializer_range": 0.3,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": None,
}


def _rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 1000.0, **parameters}}


_LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama_tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama_attention_bias": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True}),
    "llama_mlp_bias": (LlamaConfig, LlamaForCausalLM, {"mlp_bias": True}),
    "llama_no_gqa": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 6}),
    "llama_one_kv_head": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 1}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"head_dim": 8}),
    "qwen2_tied": (Qwen2Config, Qwen2ForCausalLM, {"head_dim": 8, "tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
    "qwen3_tied_bias": (Qwen3Config, Qwen3ForCausalLM, {"tie_word_embeddings": True, "attention_bias": True}),
    "linear": (LlamaConfig, LlamaForCausalLM, _rope(rope_type="linear", factor=3.0)),
    "dynamic": (LlamaConfig, LlamaForCausalLM, _rope(rope_type="dynamic", factor=2.0)),
    "llama3": (LlamaConfig, LlamaForCausalLM, _rope(rope_type="llama3", **_LLAMA3)),
    "yarn": (
        LlamaConfig,
        LlamaForCausalLM,
        _rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=4.0),
    ),
    "yarn_mscale": (
        Qwen3Config,
        Qwen3ForCausalLM,
        _rope(
            rope_type="yarn",
            factor=4.0,
            original_max_position_embeddings=16,
            mscale=1.5,
            mscale_all_dim=0.7,
            truncate=False,
        ),
    ),
}


@cache
def huggingface(case: str) -> Any:
    """The case's model in transformers, float32, with biases and norms drawn too."""
    config_class, model_class, changes = CASES[case]
    torch.manual_seed(len(case))
    model = model_class(config_class(**{**SHAPE, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
            elif "norm" in name:
                parameter.normal_(mean=1.0, std=0.3)
    return model


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, SHAPE["vocab_size"], (n,), generator=generator).tolist() for n in (1, 7, 30)]


def expected(case: str, max_tokens: int) -> list[list[int]]:
    """What transformers generates, greedily."""
    model = huggingface(case)
    outputs = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
        )
        outputs.append(out[0, len(prompt) :].tolist())
    return outputs


def runner(
    case: str,
    folder: Path,
    *,
    mode: ModeName | Literal["int8"] = "float32",
    change_config: Callable[[DecoderConfig], DecoderConfig] = lambda config: config,
    change_operators: Callable[[Operators], Operators] = lambda operators: operators,
    change_model: Callable[[Any], None] = lambda _: None,
    max_model_len: int = 128,
) -> ModelRunner:
    """Our model of a case, read from the folder that transformers wrote; the changes are for mutants."""
    if not (folder / "config.json").exists():
        huggingface(case).save_pretrained(folder)
    operators = change_operators(get_operators("cpu"))
    config = change_config(read_hf_config(folder / "config.json"))
    with torch.inference_mode():
        weights = SafetensorsWeights(folder)
        source: Any = Source(weights)
        model: Any
        if mode == "int8":
            model = Int8Decoder(rotated_config(config), max_model_len=max_model_len, threads=2)
            source = RotatedWeights(source, config)
        else:
            model = build_model(
                config, operators=operators, mode=NumericMode(mode), device=CPU, max_model_len=max_model_len
            )
        load_weights(model, source)
        weights.close()
        change_model(model)
        return ModelRunner(
            model,
            sampler=Sampler(operators),
            kv=[model.new_kv(200, BLOCK_SIZE)],
            num_blocks=200,
            max_model_len=max_model_len,
            max_num_seqs=8,
            steps_in_flight=2,
        )


class Source:
    """A WeightSource of what has `tensors` and a length."""

    def __init__(self, weights: Any):
        self._weights = weights
        self.num_tensors = len(weights)

    def tensors(self):
        return self._weights.tensors()


def shorter_context(operators: Operators) -> Operators:
    """Off by one: a row of more than one token does not see its last one."""

    def paged_attention(q, k_cache, v_cache, block_table, query_start, context_lens, **kwargs):
        lens = torch.where(context_lens > query_start.diff(), context_lens - 1, context_lens)
        return operators.paged_attention(q, k_cache, v_cache, block_table, query_start, lens, **kwargs)

    return replace(operators, paged_attention=paged_attention)


def swap_heads(model: Decoder) -> None:
    """The first block's first and last query heads change places, as a wrong permutation of weights would do."""
    method = model.blocks[0].qkv._method
    size, last = model.config.head_dim, model.config.num_heads - 1
    order = list(range(method.weight.shape[0]))
    order[:size], order[last * size : (last + 1) * size] = order[last * size : (last + 1) * size], order[:size]
    method.weight.copy_(method.weight[order].clone())


def wrong_rope(config: DecoderConfig) -> DecoderConfig:
    """The factor of a scaled rope, or the base of a plain one, is a fifth too large."""
    rope = config.rope
    return replace(
        config,
        rope=replace(rope, theta=rope.theta * 1.2)
        if rope.type == "default"
        else replace(rope, factor=rope.factor * 1.2),
    )
