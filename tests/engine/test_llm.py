"""The offline class, on a tiny model with weights drawn from a seed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from streamgen.errors import ConfigError, ContextLengthError, InvalidRequestError, ModelLoadError
from streamgen.llm import LLM, RequestOutput, engine_config
from streamgen.models.config import GenerationDefaults
from streamgen.types import FinishReason, SamplingParams
from streamgen_kernels.int8.decoder import _forward, _logits

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 127,
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder: Path = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(TINY))
    with LLM(
        str(folder), load_format="dummy", dtype="float32", device="cpu", max_num_seqs=4, num_gpu_blocks_override=64
    ) as llm:
        yield llm


def test_a_batch_gives_what_each_prompt_gives_alone(llm: LLM) -> None:
    prompts = [[1, 2, 3], [4] * 40, [5], [6, 7] * 9, [8] * 17]
    done: list[RequestOutput] = []
    together = llm.generate(prompts, GREEDY, on_output=done.append)
    assert [list(o.prompt_token_ids) for o in together] == prompts
    assert len(done) == len(prompts)
    for prompt, output in zip(prompts, together, strict=True):
        (alone,) = llm.generate(prompt, GREEDY)
        assert alone.outputs[0].token_ids == output.outputs[0].token_ids
        assert alone.outputs[0].finish_reason is FinishReason.LENGTH
        assert output.usage.completion_tokens == 6


def test_seeded_siblings_differ_and_repeat(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12, n=3, seed=42, ignore_eos=True)
    first, second = ([o.token_ids for o in llm.generate([[1, 2]], params)[0].outputs] for _ in range(2))
    assert first == second
    assert len({tuple(tokens) for tokens in first}) == 3


def test_E1_a_seeded_answer_does_not_depend_on_its_neighbours(llm: LLM) -> None:
    seeded = SamplingParams(temperature=1.0, max_tokens=10, seed=42, ignore_eos=True)
    unseeded = SamplingParams(temperature=1.0, max_tokens=14, ignore_eos=True)
    alone = llm.generate([[9, 8, 7]], seeded)[0].outputs[0].token_ids
    prompts = [[3] * 30, [9, 8, 7], [2], [9, 8, 7]]
    outputs = llm.generate(prompts, [unseeded, seeded, unseeded, seeded])
    assert outputs[1].outputs[0].token_ids == alone
    assert outputs[3].outputs[0].token_ids == alone


def test_one_bad_prompt_is_refused_before_anything_is_computed(llm: LLM) -> None:
    steps = llm.engine.stats().steps
    with pytest.raises(ContextLengthError):
        llm.generate([[1], [1] * 300], GREEDY)
    with pytest.raises(InvalidRequestError, match="128"):
        llm.generate([[1], [128]], GREEDY)
    with pytest.raises(InvalidRequestError, match="no tokenizer"):
        llm.generate("text", GREEDY)
    with pytest.raises(InvalidRequestError, match="2 prompts and 1"):
        llm.generate([[1], [2]], [GREEDY])
    assert llm.engine.stats().steps == steps
    assert llm.generate([], GREEDY) == []


def test_a_batch_may_be_longer_than_any_servers_queue(llm: LLM) -> None:
    """The queue's bounds protect a server from its clients; a batch has the length that it has."""
    one = SamplingParams(temperature=0.0, max_tokens=1, n=3)
    outputs = llm.generate([[i % 100] * 4 for i in range(400)], one)
    assert [len(output.outputs) for output in outputs] == [3] * 400
    assert llm.engine.stats().waiting == 0


def test_the_models_default_length_gives_way_to_the_context(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = GenerationDefaults(temperature=0.0, max_tokens=250)
    monkeypatch.setattr(
        llm, "_loaded", llm._loaded._replace(checkpoint=replace(llm._loaded.checkpoint, generation=defaults))
    )
    long, short = llm.generate([[1] * 200, [1]])
    assert long.usage.completion_tokens == 56
    assert short.usage.completion_tokens == 250


def test_a_model_that_cannot_be_loaded_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ModelLoadError):
        LLM(str(tmp_path))
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("streamgen"):
            thread.join(20)
            assert not thread.is_alive()


def test_a_users_script_prints_what_it_prints_itself(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate([[1, 2], [3]], GREEDY)
    with pytest.raises(InvalidRequestError, match="no tokenizer"):
        llm.chat([{"role": "user", "content": "Hello"}])
    assert capfd.readouterr() == ("", "")


def test_a_default_of_the_models_that_is_not_applied_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "repetition_penalty": 1.1}))
    options = {"load_format": "dummy", "dtype": "float32", "device": "cpu", "num_gpu_blocks_override": 64}
    with LLM(str(tmp_path), **options) as llm:
        llm.generate([[1], [2]])
        assert llm.default_params().temperature == 0.5
    (record,) = [record for record in caplog.records if "repetition_penalty" in record.getMessage()]
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith("generation_config.json: repetition_penalty=1.1 is not applied")


def test_options_find_their_config() -> None:
    config = engine_config("m", {"dtype": "float32", "block_size": 32, "max_num_seqs": 3, "enforce_eager": True})
    assert (config.model.model, config.model.dtype) == ("m", "float32")
    assert (config.cache.block_size, config.scheduler.max_num_seqs, config.enforce_eager) == (32, 3, True)
    with pytest.raises(ConfigError, match="swap_space"):
        engine_config("m", {"swap_space": 4})


def test_what_is_prepared_once_is_prepared_before_the_first_request(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    with LLM(str(tmp_path), load_format="dummy", dtype="int8", device="cpu", num_gpu_blocks_override=64) as llm:
        assert _forward.signatures
        compiled = len(_forward.signatures), len(_logits.signatures)
        assert llm.engine.stats().steps == 0
        assert len(llm.generate([[1, 2, 3]], GREEDY)[0].outputs[0].token_ids) == 6
        assert (len(_forward.signatures), len(_logits.signatures)) == compiled
