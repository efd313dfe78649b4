import json
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

from streamgen.config import ModelConfig
from streamgen.errors import ConfigError, ModelLoadError
from streamgen.loader import open_checkpoint
from streamgen.models.config import GenerationDefaults
from tests.unit.loader.folder_for_tests import byte_tokenizer, write_folder
from tests.unit.loader.gguf_for_tests import Q, bpe_metadata, decoder_metadata, decoder_weights, write_gguf


def opened(path, **values):
    return open_checkpoint(ModelConfig(model=str(path), **values))


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model")


@pytest.fixture
def gguf(tmp_path):
    tokenizer = bpe_metadata(byte_tokenizer(), "gpt-2")
    ids = {"tokenizer.ggml.bos_token_id": 256, "tokenizer.ggml.eos_token_id": 257, "general.sampling.temp": 0.5}
    path = tmp_path / "tiny.Q8_0.gguf"
    return write_gguf(path, decoder_metadata() | tokenizer | ids, decoder_weights(vocab=259))


def test_a_folder(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 257], "top_k": 3}))
    checkpoint = opened(folder)
    assert (checkpoint.name, checkpoint.dummy, checkpoint.num_tensors) == ("model", False, 1)
    assert checkpoint.decoder.eos_token_ids == checkpoint.tokenizer.eos_token_ids == (257, 258)
    assert checkpoint.decoder.bos_token_id == 256
    assert checkpoint.generation == GenerationDefaults(top_k=3)
    ((name, value),) = checkpoint.tensors()
    assert name == "model.norm.weight"
    assert torch.equal(value, torch.ones(16))
    checkpoint.close()
    assert opened(folder, generation_config="vllm").generation == GenerationDefaults()


def test_a_gguf_file_and_a_folder_with_one(gguf, tmp_path):
    for path in (gguf, tmp_path):
        checkpoint = opened(path)
        assert checkpoint.name in ("tiny.Q8_0", tmp_path.name)
        assert checkpoint.decoder.architecture == "LlamaForCausalLM"
        assert (checkpoint.decoder.bos_token_id, checkpoint.decoder.eos_token_ids) == (256, (257,))
        assert checkpoint.generation == GenerationDefaults(temperature=0.5)
        assert len(dict(checkpoint.tensors())) == checkpoint.num_tensors == 11
        assert checkpoint.tokenizer.decode(checkpoint.tokenizer.encode("Hi")) == "Hi"


def test_several_gguf_files_must_be_told_apart(gguf, tmp_path):
    (tmp_path / "other.gguf").write_bytes(gguf.read_bytes())
    with pytest.raises(ModelLoadError, match=r"several GGUF files; name one of them: other\.gguf, tiny"):
        opened(tmp_path)


def test_progress_is_told(folder):
    told = []
    open_checkpoint(ModelConfig(model=str(folder)), progress=lambda *args: told.append(args))
    assert told[-1][1] == told[-1][2]
    assert all(isinstance(what, str) and 0 <= done <= total for what, done, total in told)


def test_dummies_need_a_config_alone(tmp_path, gguf):
    bare = write_folder(tmp_path / "bare", weights=False, tokenizer=False)
    for path in (bare, bare / "config.json", gguf):
        checkpoint = opened(path, load_format="dummy")
        assert checkpoint.dummy
        assert (checkpoint.num_tensors, list(checkpoint.tensors())) == (0, [])
        assert (checkpoint.tokenizer is None) == (path is not gguf)
        assert checkpoint.name == ("bare" if path is not gguf else "tiny.Q8_0")
        checkpoint.close()
    with_tokenizer = write_folder(tmp_path / "with", weights=False)
    assert opened(with_tokenizer, load_format="dummy").tokenizer is not None
    assert opened(bare, load_format="dummy", tokenizer=str(with_tokenizer)).tokenizer is not None


def test_another_tokenizer_and_template(folder, gguf, tmp_path):
    other = write_folder(tmp_path / "other", weights=False)
    (other / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<pad>"}))
    for path in (folder, gguf):
        checkpoint = opened(path, tokenizer=str(other), chat_template="{{ messages }}")
        assert checkpoint.tokenizer.eos_token_ids == checkpoint.decoder.eos_token_ids == (258, 257)
        assert checkpoint.tokenizer.chat_template == "{{ messages }}"
    (tmp_path / "own.jinja").write_text("from a file")
    assert opened(folder, chat_template=str(tmp_path / "own.jinja")).tokenizer.chat_template == "from a file"
    with pytest.raises(ConfigError, match="--chat-template must be a file or"):
        opened(folder, chat_template="no-such-file.jinja")


def test_a_gguf_without_a_tokenizer_takes_one_from_elsewhere(tmp_path, folder):
    path = write_gguf(tmp_path / "bare.gguf", decoder_metadata(), decoder_weights())
    with pytest.raises(ModelLoadError, match="carries no tokenizer; name one with --tokenizer"):
        opened(path)
    assert opened(path, tokenizer=str(folder)).decoder.eos_token_ids == (257,)


def test_more_tokens_than_the_model_has_are_said(tmp_path, caplog):
    opened(write_folder(tmp_path / "small", vocab_size=100))
    assert "the tokenizer has 259 tokens, but the model only 100" in caplog.text


@pytest.mark.parametrize(
    "name, values, error, match",
    [
        ("nowhere/at/all", {}, ModelLoadError, "no file or folder nowhere/at/all"),
        ("./nowhere", {}, ModelLoadError, "no file or folder"),
        ("{gguf}", {"load_format": "safetensors"}, ConfigError, "is a GGUF file"),
        ("{folder}", {"load_format": "gguf"}, ConfigError, "is no GGUF file"),
        ("{folder}/config.json", {}, ConfigError, "a config without weights"),
        ("{folder}/model.safetensors", {}, ModelLoadError, "name its folder"),
        ("{folder}/tokenizer.json", {}, ModelLoadError, "neither a folder nor a GGUF file"),
        ("{folder}", {"tokenizer": "{folder}/model.safetensors"}, ModelLoadError, "--tokenizer"),
    ],
)
def test_what_cannot_be_opened(folder, gguf, name, values, error, match):
    def fill(text):
        return text.format(folder=folder, gguf=gguf)

    with pytest.raises(error, match=match):
        opened(fill(name), **{key: fill(value) for key, value in values.items()})


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        opened(tmp_path)


def test_quantized_tensors_are_made_one_at_a_time(tmp_path):
    weights = decoder_weights(vocab=259) | {"output.weight": np.ones((259, 64), np.float32)}
    metadata = decoder_metadata() | bpe_metadata(byte_tokenizer(), "gpt-2")
    checkpoint = opened(write_gguf(tmp_path / "q.gguf", metadata, weights, qtype=Q.Q8_0))
    alive = []
    for _, value in checkpoint.tensors():
        alive = [ref for ref in alive if ref() is not None]
        assert len(alive) <= 1
        alive.append(weakref.ref(value.untyped_storage()))


def test_opening_needs_neither_torch_nor_transformers(folder, gguf):
    code = (
        "import sys; from streamgen.config import ModelConfig; from streamgen.loader import open_checkpoint\n"
        f"for model in {[str(folder), str(gguf)]!r}: open_checkpoint(ModelConfig(model=model))\n"
        "assert not {'torch', 'transformers', 'asyncio'} & sys.modules.keys(), 'imported too early'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
