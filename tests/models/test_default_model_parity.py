"""The default model in float32: greedy output equals transformers', token for token, on varied prompts."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from streamgen.config import ModelConfig
from streamgen.loader import open_checkpoint
from streamgen.models.registry import build_model
from streamgen.models.weights import load_weights
from streamgen.quantization.numeric_mode import NumericMode
from streamgen.runtime.model_runner import ModelRunner
from streamgen.runtime.sampler import Sampler
from streamgen_kernels.operators import get_operators
from tests.models.driver import generate
from tests.models.tiny import CPU, shorter_context, swap_heads, wrong_rope

TOKENS = 12
BLOCK_SIZE = 16
# Seconds on an idle machine; half a minute of arithmetic must not fail on a busy one.
pytestmark = pytest.mark.timeout(900)

PROMPTS = [
    "The capital of France is",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nAnswer in one word.<|im_end|>\n<|im_start|>user\nColour of the sky?<|im_end|>\n",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "1, 1, 2, 3, 5, 8, 13,",
    "Q: If I have 3 apples and buy 4 more, how many do I have?\nA:",
    "Dear Sir or Madam,\n\nI am writing to you because",
    '{"name": "Ada", "born": 1815, "died":',
    "Příliš žluťoučký kůň úpěl ďábelské",
    "東京は日本の",
    "😀😃😄 These three",
    "Once upon a time, in a village by the sea, there lived an old fisherman who had three daughters. " * 4,
    "A",
]


@pytest.fixture(scope="module")
def checkpoint():
    with_weights = open_checkpoint(ModelConfig())
    yield with_weights
    with_weights.close()


@pytest.fixture(scope="module")
def prompt_ids(checkpoint):
    return [checkpoint.tokenizer.encode(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def truth(checkpoint, prompt_ids):
    """Greedy output of transformers' own class, with the same weights."""
    config = checkpoint.decoder
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                num_key_value_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                max_position_embeddings=config.max_position_embeddings,
                rms_norm_eps=config.rms_norm_eps,
                tie_word_embeddings=config.tie_word_embeddings,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
                bos_token_id=None,
                eos_token_id=None,
            )
        ).eval()
    # Without a pass over 135 million random numbers that the weights would replace.
    weights = {name: tensor.float() for name, tensor in checkpoint.tensors()}
    model.load_state_dict(weights, assign=True, strict=False)
    model.tie_weights()
    rotary = type(model.model.rotary_emb)(model.config)
    model.model.rotary_emb = rotary
    assert not [name for name, tensor in model.named_parameters() if tensor.is_meta]
    outputs = []
    for prompt in prompt_ids:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
        )
        outputs.append(out[0, len(prompt) :].tolist())
    return outputs


@pytest.fixture(scope="module")
def model(checkpoint):
    return _model(checkpoint, checkpoint.decoder, get_operators("cpu"))


def test_greedy_output_equals_transformers(model, prompt_ids, truth):
    assert len(PROMPTS) >= 12
    assert generate(_runner(model), prompt_ids, TOKENS, block_size=BLOCK_SIZE, chunk=50) == truth


def test_mutants_are_caught(checkpoint, prompt_ids, truth):
    few = [1, 3, 5]
    prompts, right = [prompt_ids[i] for i in few], [truth[i] for i in few]

    rope = _model(checkpoint, wrong_rope(checkpoint.decoder), get_operators("cpu"))
    assert generate(_runner(rope), prompts, TOKENS, block_size=BLOCK_SIZE) != right

    length = _model(checkpoint, checkpoint.decoder, shorter_context(get_operators("cpu")))
    assert generate(_runner(length), prompts, TOKENS, block_size=BLOCK_SIZE) != right

    heads = _model(checkpoint, checkpoint.decoder, get_operators("cpu"))
    with torch.inference_mode():
        swap_heads(heads)
    assert generate(_runner(heads), prompts, TOKENS, block_size=BLOCK_SIZE) != right


def _model(checkpoint, config, operators):
    with torch.inference_mode():
        model = build_model(
            dataclasses.replace(config),
            operators=operators,
            mode=NumericMode("float32"),
            device=CPU,
            max_model_len=1024,
        )
        load_weights(model, checkpoint)
    return model


def _runner(model):
    return ModelRunner(
        model,
        sampler=Sampler(get_operators("cpu")),
        kv=[model.new_kv(128, BLOCK_SIZE)],
        num_blocks=128,
        max_model_len=1024,
        max_num_seqs=16,
        steps_in_flight=2,
    )
