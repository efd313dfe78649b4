"""Whatever a model's files hold, opening them gives a checkpoint or an error of ours that names the file."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgen.config import ModelConfig
from streamgen.errors import ModelLoadError
from streamgen.loader import open_checkpoint
from tests.unit.loader.folder_for_tests import CONFIG, byte_tokenizer, write_folder
from tests.unit.loader.gguf_for_tests import bpe_metadata, decoder_metadata, decoder_weights, write_gguf
from tests.unit.loader.test_gguf_tokenizer import sentencepiece_metadata

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
ROPE = st.fixed_dictionaries(
    {},
    optional={
        "rope_type": st.sampled_from(["default", "linear", "dynamic", "llama3", "yarn", "su"]) | VALUES,
        **dict.fromkeys(("factor", "rope_theta", "low_freq_factor", "high_freq_factor", "beta_fast"), VALUES),
        "original_max_position_embeddings": VALUES,
    },
)
CONFIG_CHANGES = st.dictionaries(
    st.sampled_from([*CONFIG, "head_dim", "num_key_value_heads", "rms_norm_eps", "sliding_window", "layer_types"]),
    VALUES,
)


def open_or_refuse(path):
    """Whether it could be opened and read."""
    refusal = str(path)
    try:
        checkpoint = open_checkpoint(ModelConfig(model=str(path)))
        for _ in checkpoint.tensors():
            pass
        checkpoint.tokenizer.decode(checkpoint.tokenizer.encode("Hi <eos> there"))
        checkpoint.close()
        opened = True
    except ModelLoadError as error:
        refusal, opened = error.message, False
    assert str(path) in refusal
    return opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("damage") / "model")


@given(changes=CONFIG_CHANGES, rope=ROPE)
@settings(max_examples=150)
def test_any_config(folder, changes, rope):
    values = CONFIG | {"rope_parameters": rope} | changes
    (folder / "config.json").write_text(json.dumps(values))
    open_or_refuse(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))


@given(
    changes=st.dictionaries(
        st.sampled_from(["bos_token", "eos_token", "add_bos_token", "added_tokens_decoder", "chat_template"]), VALUES
    )
)
@settings(max_examples=100)
def test_any_tokenizer_config(folder, changes):
    (folder / "tokenizer_config.json").write_text(json.dumps(changes))
    open_or_refuse(folder)
    (folder / "tokenizer_config.json").unlink()


@given(
    changes=st.dictionaries(st.sampled_from(["eos_token_id", "bos_token_id", "top_p", "top_k", "num_beams"]), VALUES)
)
@settings(max_examples=100)
def test_any_generation_config(folder, changes):
    (folder / "generation_config.json").write_text(json.dumps(changes))
    open_or_refuse(folder)
    (folder / "generation_config.json").unlink()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_any_damage_to_a_folder(tmp_path, name):
    folder, rng = write_folder(tmp_path / "model"), random.Random(name)
    whole = (folder / name).read_bytes()
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.choice((rng.randrange(256), *b'{}[]",:0-e'))
        (folder / name).write_bytes(bytes(data[: rng.choice((len(data), rng.randrange(len(data))))]))
        open_or_refuse(folder)


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
def test_any_damage_to_a_gguf_file(tmp_path, kind):
    tokenizer = bpe_metadata(byte_tokenizer(), "gpt-2") if kind == "bpe" else sentencepiece_metadata()
    path = write_gguf(tmp_path / "whole.gguf", decoder_metadata() | tokenizer, decoder_weights(vocab=400))
    assert open_or_refuse(path)
    whole, rng, opened = path.read_bytes(), random.Random(kind), 0
    head = whole.index(b"token_embd") + 1000
    damaged = tmp_path / "damaged.gguf"
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(head)] = rng.choice((0, 1, 127, 255, rng.randrange(256)))
        damaged.write_bytes(bytes(data))
        opened += open_or_refuse(damaged)
    assert 0 < opened < 200
