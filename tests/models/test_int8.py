"""The compiled decoder against the plain one, on tiny models of every shape, and whatever way a prompt is cut."""

from __future__ import annotations

import threading
from itertools import islice

import pytest
import torch

from streamgen.config import EngineConfig, ModelConfig
from streamgen.errors import ModelLoadError
from streamgen.loader import open_checkpoint
from streamgen.models import int8_decoder
from streamgen.models.config import DecoderConfig
from streamgen.models.int8_decoder import int8_block_bytes, int8_refusal
from streamgen.runtime import build, build_runner
from streamgen.types import Admission, Row, StepPlan
from tests.models import naive_int8
from tests.models.driver import GREEDY, generate, prompt_logits
from tests.models.tiny import BLOCK_SIZE, CASES, prompts, runner


def logits(target, prompt, chunk=10**9):
    return prompt_logits(target, prompt, block_size=BLOCK_SIZE, chunk=chunk)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_close_to_float32s(case, tmp_path):
    prompt = prompts()[2]
    exact = logits(runner(case, tmp_path), prompt)
    rounded = logits(runner(case, tmp_path, mode="int8"), prompt)
    error = ((exact - rounded).norm() / exact.norm()).item()
    assert 0 < error < 0.1


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_same_roundings_in_double_precision(case, tmp_path):
    target = runner(case, tmp_path, mode="int8")
    prompt = prompts()[2]
    expected = torch.from_numpy(naive_int8.logits(target._model, prompt))
    error = (logits(target, prompt).double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    # A number that lies between two bytes may be rounded to either, and then all tokens behind it move a little. Until
    # then nothing differs, as it would at once if a factor were wrong.
    assert error.quantile(0.1) < 1e-5
    assert error.max() < 0.05


def test_rows_of_tiny_numbers_are_normed_with_eps(tmp_path):
    """Where the mean square is about eps, leaving it out would show."""

    def shrink(model):
        model._weights.embedding_scale[:] *= 1e-3
        for matrix in (model._weights.o, model._weights.down):
            matrix.scale[...] *= 1e-3

    target = runner("qwen3", tmp_path, mode="int8", change_model=shrink)
    expected = torch.from_numpy(naive_int8.logits(target._model, prompts()[1]))
    error = (logits(target, prompts()[1]).double() - expected).norm() / expected.norm()
    assert error < 0.02


def test_kv_memory_is_what_was_planned(tmp_path):
    for case, size in (("qwen2", 4), ("llama", 16), ("llama", 24)):
        target = runner(case, tmp_path / f"{case}{size}", mode="int8")
        cache = target._model.new_kv(10, size).cache
        assert cache.keys.nbytes + cache.values.nbytes == 10 * int8_block_bytes(target._model.config, size)


@pytest.mark.parametrize("broken", ["qkv", "o", "gate_up", "down"])
def test_the_test_would_see_a_wrong_matrix(broken, tmp_path):
    def swap(model):
        panels = getattr(model._weights, broken).panels[1]
        panels[0, :, [0, 17]] = panels[0, :, [17, 0]].copy()

    prompt = prompts()[2]
    exact = logits(runner("llama", tmp_path), prompt)
    wrong = logits(runner("llama", tmp_path, mode="int8", change_model=swap), prompt)
    assert ((exact - wrong).norm() / exact.norm()).item() > 0.13


@pytest.mark.parametrize("chunk", [1, 3, 7, 16])
def test_logits_are_the_same_bits_however_a_prompt_is_cut(chunk, tmp_path):
    prompt = prompts()[2]
    whole = logits(runner("qwen3", tmp_path, mode="int8"), prompt)
    assert torch.equal(logits(runner("qwen3", tmp_path, mode="int8"), prompt, chunk), whole)


@pytest.mark.parametrize("most", [1, 5, 8])
def test_a_step_that_goes_through_in_pieces_is_the_same(most, tmp_path, monkeypatch):
    expected = generate(runner("llama", tmp_path, mode="int8"), prompts(), 10, block_size=BLOCK_SIZE)
    monkeypatch.setattr(int8_decoder, "MAX_TOKENS", most)
    assert generate(runner("llama", tmp_path, mode="int8"), prompts(), 10, block_size=BLOCK_SIZE) == expected


def test_a_broken_row_fails_alone_and_leaves_nothing_behind(tmp_path):
    """The NaN of one token's embedding reaches neither a batch mate nor the next holder of the blocks."""
    poison = 96

    def break_embedding(model):
        model._weights.embedding_scale[poison] = torch.nan

    healthy = [token for token in prompts()[1] if token != poison]
    target = runner("llama", tmp_path, mode="int8", change_model=break_embedding)
    expected = generate(target, [healthy], 2, block_size=BLOCK_SIZE)[0]
    target.reset()
    bad, good = ((0, (1, poison, 2), (40,)), (1, tuple(healthy), (41, 42)))
    admitted = tuple(Admission(slot, slot, 0, ids, 0, blocks, GREEDY) for slot, ids, blocks in (bad, good))
    rows = tuple(Row(slot, slot, 0, 0, len(ids), True) for slot, ids, _ in (bad, good))
    result = target.launch(StepPlan(0, True, (), admitted, rows)).wait()
    assert (result.failed, list(result.token_ids)) == ((0,), expected[:1])
    again = (Admission(0, 0, 0, tuple(healthy), 0, (40, 43), GREEDY),)
    first = target.launch(StepPlan(1, False, (0, 1), again, (Row(0, 0, 0, 0, len(healthy), True),))).wait()
    second = target.launch(StepPlan(2, False, (), (), (Row(0, 0, 0, len(healthy), 1, True),))).wait()
    assert [*first.token_ids, *second.token_ids] == expected


def test_closing_ends_the_helpers(tmp_path):
    before = set(threading.enumerate())
    target = runner("llama", tmp_path, mode="int8")
    helpers = set(threading.enumerate()) - before
    assert len(helpers) == 1
    target.close()
    for helper in helpers:
        helper.join(10)
        assert not helper.is_alive()


def shape(**changes):
    plain = {
        "architecture": "LlamaForCausalLM",
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_layers": 1,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
    }
    return DecoderConfig(**{**plain, **changes})


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"hidden_size": 50}, "hidden_size (50)"),
        ({"intermediate_size": 100}, "intermediate_size (100)"),
        ({"head_dim": 10}, "num_attention_heads times head_dim (40)"),
        ({"num_heads": 16, "head_dim": 9}, "head_dim (9) is odd"),
    ],
)
def test_shapes_that_do_not_fill_vectors_are_refused_with_the_reason(changes, reason):
    assert int8_refusal(shape()) is None
    refusal = int8_refusal(shape(**changes))
    assert refusal is not None
    assert reason in refusal


TEXT = """The harbour lay still in the early light. Two fishing boats were tied to the pier, and a man in a blue coat
was mending a net between them. "You are late," he said, without looking up. The girl set down her basket. She had
walked since before dawn, eleven miles along the coast, and her shoes were wet. def area(r): return 3.14159 * r ** 2
gives the area of a circle. In 1969, three astronauts travelled to the Moon; two of them walked on it. Water boils at
100 degrees."""


def test_a_load_that_fails_leaves_no_thread_behind(monkeypatch):
    monkeypatch.setattr(build, "cpu_threads", lambda: 3)
    config = ModelConfig(dtype="int8")
    checkpoint = open_checkpoint(config)
    fewer = list(islice(checkpoint.tensors(), 20))
    monkeypatch.setattr(type(checkpoint), "tensors", lambda _: iter(fewer))
    before = set(threading.enumerate())
    with pytest.raises(ModelLoadError, match="lacks"):
        build_runner(EngineConfig(model=config, device="cpu"), checkpoint)
    for helper in set(threading.enumerate()) - before:
        helper.join(5)
    assert set(threading.enumerate()) <= before
    checkpoint.close()


@pytest.mark.timeout(600)
def test_the_default_models_predictions_are_close_to_float32s():
    predictions = []
    for dtype in ("float32", "int8"):
        config = ModelConfig(dtype=dtype)
        checkpoint = open_checkpoint(config)
        target = build_runner(EngineConfig(model=config, device="cpu"), checkpoint)
        tokens = checkpoint.tokenizer.encode(TEXT)
        predictions.append(prompt_logits(target, tokens, block_size=16).log_softmax(-1))
        target.close()
        checkpoint.close()
    exact, rounded = predictions
    assert (exact.argmax(-1) == rounded.argmax(-1)).float().mean() > 0.9
    assert (exact.exp() * (exact - rounded)).sum(-1).mean() < 0.015
