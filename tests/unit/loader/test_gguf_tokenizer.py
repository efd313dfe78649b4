"""Tokenizers are built by the tokenizers library as their models' own tokenizer.json says, written into a GGUF file
as converters do, and must come out the same. SentencePiece's is compared with its merge rule written out."""

import itertools
import random

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from streamgen.errors import ModelLoadError
from streamgen.loader.gguf_file import GGUFFile
from streamgen.loader.gguf_tokenizer import load_gguf_tokenizer
from tests.unit.loader.gguf_for_tests import bpe_metadata, write_gguf

CORPUS = [
    "Hello, hello world! It's what they'll say: we've gone, I'M here, you'D know.",
    "In 2024 there were 12345 cats, 1000000 dogs and 7 birds. 3.14159 2718",
    "def main(argv):\n    return [x**2 for x in range(10)]  # squares\n\n\nif __name__ == '__main__':\n\tmain()",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Das schöne Mädchen, l'école française.",
    "你好、世界。日本語のテキスト。한국어 문장. Привет, мир! مرحبا ١٢٣",
    "🙂🙃👩‍👩‍👧 e\u0301 \u212b ﬁ",
] * 4
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
POOL = "abHW 01'sStTlL\n\r\t.,!éčß你好🙂\u0301\u00a0<|>_-/"

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def texts():
    rng = random.Random(0)
    fixed = ["", " ", "  two  spaces ", "1234567 89", "I'LL'd it's", "e\u0301cole \u212b", "x\r\n\r\n y", *SPECIAL]
    fixed += ["<|begin_of_text|>Hello<|eot_id|> <think> x</think>", *CORPUS[:6]]
    return fixed + ["".join(rng.choice(POOL) for _ in range(rng.randint(1, 40))) for _ in range(300)]


def trained(pre_tokenizer, normalizer=None, *, ignore_merges=False):
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return backend


def split(pattern):
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


ORIGINALS = {
    "llama-bpe": lambda: trained(split(LLAMA3), ignore_merges=True),
    "qwen2": lambda: trained(split(QWEN2), normalizers.NFC()),
    "gpt-2": lambda: trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "smollm": lambda: trained(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ),
}


def load(tmp_path, metadata):
    return load_gguf_tokenizer(GGUFFile(write_gguf(tmp_path / "t.gguf", metadata, {})))


@pytest.mark.parametrize("pre", ORIGINALS)
def test_byte_level_bpe_is_the_original(tmp_path, pre):
    original = ORIGINALS[pre]()
    loaded = load(tmp_path, bpe_metadata(original, pre, padded_to=original.get_vocab_size() + 9))
    assert loaded.backend.get_vocab() == original.get_vocab()
    for text in texts():
        ids = original.encode(text, add_special_tokens=False).ids
        assert loaded.encode(text, add_special_tokens=False) == ids, text
        for skip in (True, False):
            assert loaded.decode(ids, skip_special_tokens=skip) == original.decode(ids, skip_special_tokens=skip)


def test_the_texts_tell_the_patterns_apart():
    loaded = {pre: make() for pre, make in ORIGINALS.items()}
    for one, other in itertools.combinations(loaded, 2):
        first, second = loaded[one].pre_tokenizer, loaded[other].pre_tokenizer
        assert any(first.pre_tokenize_str(text) != second.pre_tokenize_str(text) for text in texts()), (one, other)


def test_kinds_of_tokens(tmp_path):
    original = ORIGINALS["llama-bpe"]()
    tokenizer = load(tmp_path, bpe_metadata(original, "llama-bpe", padded_to=1000))
    ids = tokenizer.encode("<|eot_id|><think>", add_special_tokens=False)
    assert len(ids) == 2
    assert tokenizer.decode(ids) == "<think>"
    assert tokenizer.vocab_size == original.get_vocab_size()
    assert len(tokenizer.encode("[PAD999]", add_special_tokens=False)) > 1


def test_ids_templates_and_flags(tmp_path):
    original = ORIGINALS["llama-bpe"]()
    bos, end, eot = (original.token_to_id(text) for text in SPECIAL)
    metadata = bpe_metadata(original, "llama-bpe") | {
        "tokenizer.ggml.bos_token_id": bos,
        "tokenizer.ggml.eos_token_id": eot,
        "tokenizer.ggml.padding_token_id": 2**32 - 1,
        "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "{{ tools }}",
    }
    tokenizer = load(tmp_path, metadata)
    assert tokenizer.eos_token_ids == (eot, end)
    assert tokenizer.special_tokens == {"bos_token": SPECIAL[0], "eos_token": SPECIAL[2]}
    assert tokenizer.chat_template == {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    assert tokenizer.encode("Hello")[0] == bos, "this family begins with BOS unless the file says otherwise"
    assert tokenizer.encode("Hello").count(bos) == 1
    silent = load(tmp_path, metadata | {"tokenizer.ggml.add_bos_token": False})
    assert bos not in silent.encode("Hello")
    both = load(tmp_path, metadata | {"tokenizer.ggml.add_eos_token": True})
    assert both.encode("Hello")[-1] == eot


def test_without_types_every_token_is_plain(tmp_path):
    metadata = bpe_metadata(ORIGINALS["gpt-2"](), "gpt-2")
    del metadata["tokenizer.ggml.token_type"]
    tokenizer = load(tmp_path, metadata)
    assert tokenizer.decode(tokenizer.encode("Hello <think> 你")) == "Hello <think> 你"
    assert tokenizer.chat_template is None
    assert tokenizer.eos_token_ids == ()


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"tokenizer.ggml.model": "bert"}, "'bert' is not supported"),
        ({"tokenizer.ggml.model": None}, "carries no tokenizer"),
        ({"tokenizer.ggml.pre": "invented"}, "'invented' is not known. Known: .*llama-bpe"),
        ({"tokenizer.ggml.pre": None}, "does not say how its tokenizer cuts text"),
        ({"tokenizer.ggml.tokens": None}, "tokens is missing"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "no list of strings"),
        ({"tokenizer.ggml.tokens": ["a", "b", "a"], "tokenizer.ggml.token_type": [1, 1, 1]}, "'a' twice"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "one number for each"),
        ({"tokenizer.ggml.token_type": ["a", "b"]}, "one number for each"),
        ({"tokenizer.ggml.merges": None}, "merges is missing"),
        ({"tokenizer.ggml.merges": ["ab"]}, "no pairs"),
        ({"tokenizer.ggml.merges": ["never seen"]}, "do not fit its tokens"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, "bos_token_id must be"),
        ({"tokenizer.ggml.add_bos_token": 1}, "must be true or false"),
        ({"tokenizer.chat_template": 1}, "must be a string"),
    ],
)
def test_what_cannot_be_right_is_refused(tmp_path, changes, match):
    metadata = bpe_metadata(ORIGINALS["gpt-2"](), "gpt-2") | changes
    with pytest.raises(ModelLoadError, match=match) as caught:
        load(tmp_path, {key: value for key, value in metadata.items() if value is not None})
    assert "t.gguf" in caught.value.message


def test_types_and_scores_that_are_no_numbers(tmp_path):
    metadata = sentencepiece_metadata()
    for key in ("tokenizer.ggml.token_type", "tokenizer.ggml.scores"):
        values = [float("nan")] * len(metadata[key])
        with pytest.raises(ModelLoadError, match=f"{key} must have one number for each"):
            load(tmp_path, metadata | {key: values})


SPM_WORDS = [
    *("▁the", "▁then", "▁there", "▁he", "he", "▁her", "her", "▁world", "▁wor", "wor", "ld", "old", "▁old"),
    *("ing", "▁▁", "▁▁▁▁", "é", "▁é", "12", "23", "th", "▁t", "er", "re", "▁h"),
]


def sentencepiece_metadata():
    rng = random.Random(3)
    chars = sorted(set("".join(SPM_WORDS)) | set("abcdefghijklmnop.,!?0123456789"))
    words = [word for word in SPM_WORDS if len(word) > 1]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, *chars, "[INST]", "<user>"]
    ranks = list(range(len(words)))
    rng.shuffle(ranks)
    kinds = [2, 3, 3, *([6] * 256), *([1] * (len(words) + len(chars))), 3, 4]
    scores = [0.0] * 259 + [-float(rank) for rank in ranks] + [-1000.0 - i for i in range(len(chars))] + [0.0, 0.0]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def sentencepiece_rule(metadata, text, *, prefix=True):
    """Merge the neighbours whose joined text has the highest score, the leftmost first; the rest becomes bytes."""
    scores = {
        token: score
        for token, score, kind in zip(
            metadata["tokenizer.ggml.tokens"],
            metadata["tokenizer.ggml.scores"],
            metadata["tokenizer.ggml.token_type"],
            strict=True,
        )
        if kind == 1
    }
    pieces = list((" " + text if prefix and text else text).replace(" ", "▁"))
    while True:
        candidates = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in scores]
        if not candidates:
            break
        _, i = min(candidates)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    out = []
    for piece in pieces:
        out += [ids[piece]] if piece in scores else [3 + byte for byte in piece.encode()]
    return out


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_bpe_follows_its_rule(tmp_path, prefix):
    metadata = sentencepiece_metadata() | {"tokenizer.ggml.add_space_prefix": prefix}
    tokenizer = load(tmp_path, metadata)
    rng = random.Random(4)
    pool = [
        "the",
        "there",
        "her",
        "world",
        "old",
        " ",
        "  ",
        "    ",
        "é",
        "12",
        "123",
        ".",
        "你",
        "🙂",
        "\n",
        "th",
        "e",
        "r",
    ]
    for _ in range(500):
        text = "".join(rng.choice(pool) for _ in range(rng.randint(1, 12)))
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == sentencepiece_rule(metadata, text, prefix=prefix), text
        assert tokenizer.decode(ids) == text


def test_sentencepiece_specials_and_bos(tmp_path):
    tokenizer = load(tmp_path, sentencepiece_metadata())
    size = tokenizer.vocab_size
    assert tokenizer.encode("the")[0] == 1
    assert tokenizer.eos_token_ids == (2,)
    ids = tokenizer.encode("[INST]<user></s>", add_special_tokens=False)
    assert ids == [size - 2, size - 1, 2]
    assert tokenizer.decode(ids) == "<user>"
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_sentencepiece_without_bytes_has_the_unknown_token(tmp_path):
    metadata = sentencepiece_metadata()
    keep = [i for i, kind in enumerate(metadata["tokenizer.ggml.token_type"]) if kind != 6]
    for key in ("tokens", "scores", "token_type"):
        values = metadata[f"tokenizer.ggml.{key}"]
        metadata[f"tokenizer.ggml.{key}"] = [values[i] for i in keep]
    tokenizer = load(tmp_path, metadata)
    assert 0 in tokenizer.encode("the 你", add_special_tokens=False)
