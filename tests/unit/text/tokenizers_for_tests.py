"""Small tokenizers of each kind, built in the test: no file, no network."""

from functools import cache

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from streamgen.text.tokenizer import Tokenizer

BOS, EOS = "<s>", "</s>"
WORDS = ["▁", "▁Hello", "▁world", "▁the", "ing", "Hello", "DE", "F", "GH", "DEF", "a", "b", "ab", "\n", ".", "▁▁", "é"]


def wrap(backend: tokenizers.Tokenizer, **kwargs: object) -> Tokenizer:
    values: dict[str, object] = {
        "bos_token_id": backend.token_to_id(BOS),
        "eos_token_ids": (backend.token_to_id(EOS),),
        "chat_template": None,
        "special_tokens": {"bos_token": BOS, "eos_token": EOS},
        "add_bos": False,
        "add_eos": False,
    }
    return Tokenizer(backend, **(values | kwargs))


@cache
def byte_level_backend() -> tokenizers.Tokenizer:
    """All 256 bytes, a few merges that cut characters, special and plain added tokens; ids have a hole."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)}
    merges = []
    for text in ("he", "llo", " w", "ě"):
        chars = [alphabet_of(byte) for byte in text.encode()]
        for end in range(2, len(chars) + 1):
            joined = "".join(chars[:end])
            if joined not in vocab:
                vocab[joined] = len(vocab)
                merges.append(("".join(chars[: end - 1]), chars[end - 1]))
    # The first half of an emoji together with the space before it: a token that neither begins nor ends a character.
    for data in (b" \xf0\x9f", b"\x98\x80", b"\x98", b"\xe4\xbd", b"\xa0\xe5", b"\xa5\xbd"):
        token = "".join(alphabet_of(byte) for byte in data)
        if token not in vocab:
            vocab[token] = len(vocab) + 3
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([BOS, EOS, "<|special with space|>", "<\uff5cwide\uff5c>"])
    backend.add_tokens([AddedToken("<think>", normalized=False), AddedToken("two words", normalized=False)])
    return backend


def alphabet_of(byte: int) -> str:
    from streamgen.text.byte_level import BYTE_OF_CHAR

    return next(char for char, value in BYTE_OF_CHAR.items() if value == byte)


@cache
def byte_fallback_backend(*, strip: bool = True) -> tokenizers.Tokenizer:
    """As Llama 2 (strip) and Gemma (no strip) have it."""
    vocab = {"<unk>": 0, BOS: 1, EOS: 2}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for word in WORDS:
        vocab.setdefault(word, len(vocab))
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        + ([decoders.Strip(" ", 1, 0)] if strip else [])
    )
    backend.add_special_tokens([BOS, EOS])
    return backend


@cache
def metaspace_backend() -> tokenizers.Tokenizer:
    """As T5 and XLM-R have it: the decoder itself knows where the text starts."""
    vocab = {"<unk>": 0, BOS: 1, EOS: 2}
    for word in WORDS:
        vocab.setdefault(word, len(vocab))
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([BOS, EOS])
    return backend


@cache
def wordpiece_backend() -> tokenizers.Tokenizer:
    vocab = {"[UNK]": 0, BOS: 1, EOS: 2, "hello": 3, "##ing": 4, "world": 5, "!": 6, "##s": 7, "do": 8, "n't": 9}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([BOS, EOS])
    return backend


def with_bos(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy whose post-processor writes the BOS, as Llama's does."""
    copy = tokenizers.Tokenizer.from_str(backend.to_str())
    copy.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, copy.token_to_id(BOS))]
    )
    return copy
