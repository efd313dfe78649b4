import json

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from streamgen.errors import ModelLoadError
from streamgen.loader.tokenizer import load_tokenizer
from tests.unit.loader.folder_for_tests import TEMPLATE, byte_tokenizer, write_folder
from tests.unit.loader.gguf_for_tests import bpe_metadata, write_gguf


def configure(folder, **values):
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model", weights=False)


def test_a_folder(folder):
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode("Žluťoučký 🙂")) == "Žluťoučký 🙂"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (256, (257,))
    assert tokenizer.special_tokens == {"bos_token": "<bos>", "eos_token": "<eos>"}
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.vocab_size == 259


def test_a_file_by_itself_and_a_gguf_file(folder, tmp_path):
    assert load_tokenizer(folder / "tokenizer.json").eos_token_ids == (257,)
    path = write_gguf(tmp_path / "t.gguf", bpe_metadata(byte_tokenizer(), "gpt-2"), {})
    assert load_tokenizer(path).encode("Hi") == load_tokenizer(folder).encode("Hi")


def test_special_tokens_from_the_older_map(folder):
    (folder / "tokenizer_config.json").unlink()
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": "<eos>", "pad_token": {"content": "<pad>"}})
    )
    tokenizer = load_tokenizer(folder)
    assert tokenizer.special_tokens == {"eos_token": "<eos>", "pad_token": "<pad>"}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.chat_template) == (None, (257,), None)


def with_bos_in_its_post_processor(folder):
    backend = byte_tokenizer()
    backend.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 256)])
    backend.save(str(folder / "tokenizer.json"))


def test_bos_comes_once_whoever_adds_it(folder):
    assert 256 not in load_tokenizer(folder).encode("a")
    with_bos_in_its_post_processor(folder)
    assert load_tokenizer(folder).encode("a")[:1] == [256]
    configure(folder, bos_token="<bos>", eos_token="<eos>", add_bos_token=True, add_eos_token=True)
    ids = load_tokenizer(folder).encode("a")
    assert (ids[0], ids[-1], len(ids)) == (256, 257, 3)
    configure(folder, bos_token="<bos>", add_bos_token=False)
    assert 256 not in load_tokenizer(folder).encode("a")


def test_tokens_that_only_the_config_knows_are_added(folder):
    added = {
        "260": {"content": "<think>", "special": False, "normalized": False},
        "259": {"content": "<x>", "special": True},
    }
    configure(folder, added_tokens_decoder={"256": {"content": "<bos>", "special": True}} | added)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("<x><think>") == [259, 260]
    assert tokenizer.decode([259, 260]) == "<think>"


@pytest.mark.parametrize("decoder", [{"a": {"content": "x"}}, {"9": {}}, {"9": "x"}, {"9": {"content": 3}}, [1]])
def test_added_tokens_that_are_none(folder, decoder):
    configure(folder, added_tokens_decoder=decoder)
    with pytest.raises(ModelLoadError, match="added_tokens_decoder"):
        load_tokenizer(folder)


def test_truncation_in_the_file_cuts_no_prompt(folder):
    backend = byte_tokenizer()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    backend.save(str(folder / "tokenizer.json"))
    assert len(load_tokenizer(folder).encode("a" * 20)) == 20


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"model": {"type": "Nope"}}', b"\xff"])
def test_a_tokenizer_json_that_is_none(folder, data):
    (folder / "tokenizer.json").write_bytes(data)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(folder)


def test_no_tokenizer_at_all(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadError, match=r"has no tokenizer.*--tokenizer"):
        load_tokenizer(folder)


def test_older_files_go_through_transformers(folder):
    (folder / "tokenizer.json").unlink()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)} | {"he": 256, "<|endoftext|>": 257}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\nh e\n")
    configure(folder, tokenizer_class="Qwen2Tokenizer", eos_token="<|endoftext|>")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("he!<|endoftext|>") == [256, vocab["!"], 257]
    assert tokenizer.decode(tokenizer.encode("e\u0301 he 12")) == "\u00e9 he 12"
    assert tokenizer.eos_token_ids == (257,)


def test_a_template_file_comes_before_the_config(folder):
    (folder / "chat_template.jinja").write_text("file {{ x }}")
    assert load_tokenizer(folder).chat_template == "file {{ x }}"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert load_tokenizer(folder).chat_template == {"default": "file {{ x }}", "tool_use": "tools"}


def test_templates_by_name_and_in_the_older_file(folder):
    configure(folder, chat_template=[{"name": "default", "template": "d"}, {"name": "rag", "template": "r"}])
    assert load_tokenizer(folder).chat_template == {"default": "d", "rag": "r"}
    configure(folder)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "older"}))
    assert load_tokenizer(folder).chat_template == "older"


@pytest.mark.parametrize("template", [5, [1], [{"name": [], "template": "x"}], [{"name": "x"}], {"name": "x"}])
def test_templates_that_are_none(folder, template):
    configure(folder, chat_template=template)
    with pytest.raises(ModelLoadError, match="neither a template nor a list"):
        load_tokenizer(folder)


def test_a_word_level_tokenizer_is_one_too(tmp_path):
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("a b") == [0, 1]
