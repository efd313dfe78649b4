"""The tokenizer that a GGUF file carries in its metadata: `tokenizer.ggml.*` → Tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from streamgen.loader.bpe_pre_tokenizers import BPEPreTokenizer, bpe_pre_tokenizer
from streamgen.loader.gguf_file import GGUFFile
from streamgen.loader.json_file import Fields
from streamgen.text.tokenizer import Tokenizer

WORD_MARK = "\u2581"
"""SentencePiece's stand-in for a space."""

MAX_PIECE_CHARS = 512
"""Bounds the work of a hostile file; SentencePiece makes no piece of more than 16 characters unless told to."""

END_OF_GENERATION = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|eot|>",
        "<|eom|>",
        "<end_of_turn>",
        "<EOT>",
        "</s>",
        "[EOS]",
    }
)
"""A GGUF file names one end token where generation_config.json often lists several, so control tokens with these
texts end a generation too, as they do in llama.cpp."""


class TokenType(IntEnum):
    """Values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """Texts and types by token id, without the padding at the end that no text gives."""

    texts: list[str]
    types: list[int]

    def ids(self, *wanted: TokenType) -> list[int]:
        return [token_id for token_id, kind in enumerate(self.types) if kind in wanted]


def load_gguf_tokenizer(file: GGUFFile) -> Tokenizer:
    """Build the tokenizer. Raises ModelLoadError if there is none, or if it is of a kind that is not supported."""
    metadata = Fields(file.metadata, file.path)
    model = metadata.text("tokenizer.ggml.model")
    if model is None:
        raise metadata.error("the file carries no tokenizer; name one with --tokenizer")
    if model not in ("gpt2", "llama"):
        raise metadata.error(
            f"the tokenizer model {model!r} is not supported (gpt2 and llama are); "
            "the model's own tokenizer can be named with --tokenizer"
        )
    vocabulary = _vocabulary(metadata)
    if model == "gpt2":
        style = bpe_pre_tokenizer(metadata.text("tokenizer.ggml.pre"), metadata.source)
        backend, adds_bos = _byte_level_bpe(metadata, vocabulary, style), style.add_bos
    else:
        backend, adds_bos = _sentencepiece_bpe(metadata, vocabulary), True
    _add_special_tokens(backend, vocabulary)

    named = {name: _token_id(metadata, name, vocabulary) for name in ("bos", "eos", "unknown", "padding", "eot", "eom")}
    texts = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    return Tokenizer(
        backend,
        bos_token_id=named["bos"],
        eos_token_ids=_end_tokens(vocabulary, named),
        chat_template=_chat_templates(metadata),
        special_tokens={
            text: vocabulary.texts[token_id] for name, text in texts.items() if (token_id := named[name]) is not None
        },
        add_bos=metadata.flag("tokenizer.ggml.add_bos_token", adds_bos),
        add_eos=metadata.flag("tokenizer.ggml.add_eos_token", False),
    )


def has_gguf_tokenizer(file: GGUFFile) -> bool:
    return "tokenizer.ggml.model" in file.metadata


def _vocabulary(metadata: Fields) -> Vocabulary:
    texts = metadata.values.get("tokenizer.ggml.tokens")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise metadata.error("tokenizer.ggml.tokens is missing, or no list of strings")
    types: list[int] = _per_token(metadata, "tokenizer.ggml.token_type", len(texts), TokenType.NORMAL).tolist()
    while types and (types[-1] == TokenType.UNUSED or not texts[len(types) - 1]):
        types.pop()
    texts = texts[: len(types)]
    if len(set(texts)) != len(texts):
        seen: set[str] = set()
        twice = next(text for text in texts if text in seen or seen.add(text))  # type: ignore[func-returns-value]
        raise metadata.error(f"tokenizer.ggml.tokens has {twice!r} twice")
    return Vocabulary(texts, types)


def _per_token(metadata: Fields, key: str, count: int, default: float) -> npt.NDArray[Any]:
    """The numeric array `key`, which must have one value a token."""
    values = metadata.values.get(key)
    if values is None:
        return np.full(count, default)
    if not isinstance(values, np.ndarray) or len(values) != count or not np.isfinite(values).all():
        raise metadata.error(f"{key} must have one number for each of the {count} tokens")
    return values


def _byte_level_bpe(metadata: Fields, vocabulary: Vocabulary, style: BPEPreTokenizer) -> tokenizers.Tokenizer:
    """GPT-2's kind: text is cut by a pattern, its bytes are mapped to characters, and pairs are merged by rank."""
    ids = {text: token_id for token_id, text in enumerate(vocabulary.texts)}
    merges = metadata.values.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise metadata.error("tokenizer.ggml.merges is missing")
    # A space within a token is another character here, so the first one after position 0 parts the two halves.
    pairs = [(merge[:at], merge[at + 1 :]) for merge in merges if (at := merge.find(" ", 1)) > 0]
    if len(pairs) != len(merges):
        raise metadata.error("tokenizer.ggml.merges has entries that are no pairs")
    try:
        model = models.BPE(ids, pairs, ignore_merges=style.ignore_merges)
    except Exception as error:  # the library raises no narrower class
        raise metadata.error(f"its merges do not fit its tokens ({error})") from error
    backend = tokenizers.Tokenizer(model)
    if (normalizer := style.normalizer()) is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = style.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece_bpe(metadata: Fields, vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """SentencePiece's BPE: neighbours merge when their joined text is a token, the one of the highest score first.

    As ranks of pairs: every way to part a token into two tokens is a merge, sorted by the score of the whole. What
    no token covers becomes bytes, if the vocabulary has all 256, or else the unknown token.
    """
    scores = _per_token(metadata, "tokenizer.ggml.scores", len(metadata.values["tokenizer.ggml.tokens"]), 0.0)
    ids = {text: token_id for token_id, text in enumerate(vocabulary.texts)}
    mergeable = {vocabulary.texts[token_id] for token_id in vocabulary.ids(TokenType.NORMAL, TokenType.USER_DEFINED)}
    ranked: list[tuple[float, int, int, str, str]] = []
    for token_id in vocabulary.ids(TokenType.NORMAL):
        text = vocabulary.texts[token_id]
        for at in range(1, min(len(text), MAX_PIECE_CHARS)):
            left, right = text[:at], text[at:]
            if left in mergeable and right in mergeable:
                ranked.append((-float(scores[token_id]), ids[left], ids[right], left, right))
    ranked.sort()
    all_bytes = all(f"<0x{byte:02X}>" in ids for byte in range(256))
    unknown = _token_id(metadata, "unknown", vocabulary)
    if unknown is None:
        unknown = next(iter(vocabulary.ids(TokenType.UNKNOWN)), None)
    try:
        model = models.BPE(
            ids,
            [(left, right) for *_, left, right in ranked],
            unk_token=None if unknown is None else vocabulary.texts[unknown],
            fuse_unk=True,
            byte_fallback=all_bytes,
        )
    except Exception as error:  # the library raises no narrower class
        raise metadata.error(f"its tokens cannot be used ({error})") from error
    backend = tokenizers.Tokenizer(model)
    prefix = metadata.flag("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", WORD_MARK)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(WORD_MARK), spaces]) if prefix else spaces
    steps: list[decoders.Decoder] = [decoders.Replace(WORD_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def _add_special_tokens(backend: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Control tokens and those that the user defined are found in text before anything else is."""
    control = vocabulary.ids(TokenType.CONTROL, TokenType.UNKNOWN)
    backend.add_special_tokens([AddedToken(vocabulary.texts[i], special=True, normalized=False) for i in control])
    defined = vocabulary.ids(TokenType.USER_DEFINED)
    backend.add_tokens([AddedToken(vocabulary.texts[i], special=False, normalized=False) for i in defined])


def _token_id(metadata: Fields, name: str, vocabulary: Vocabulary) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    # Some converters write -1, as an unsigned number, for a token that does not exist.
    if not metadata.has(key) or metadata.values[key] in (-1, 2**32 - 1):
        return None
    return metadata.integer(key, low=0, high=len(vocabulary.texts) - 1)


def _end_tokens(vocabulary: Vocabulary, named: dict[str, int | None]) -> tuple[int, ...]:
    ends = [token_id for name in ("eos", "eot", "eom") if (token_id := named[name]) is not None]
    ends += [i for i in vocabulary.ids(TokenType.CONTROL) if vocabulary.texts[i] in END_OF_GENERATION]
    return tuple(dict.fromkeys(ends))


def _chat_templates(metadata: Fields) -> str | dict[str, str] | None:
    """The template, or all of them by name if there are several."""
    prefix = "tokenizer.chat_template"
    default = metadata.text(prefix)
    others = {key[len(prefix) + 1 :]: metadata.text(key) for key in metadata.values if key.startswith(prefix + ".")}
    named = {name: template for name, template in others.items() if template is not None}
    if not named:
        return default
    return named if default is None else {"default": default, **named}
