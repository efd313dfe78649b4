"""How text is cut before byte-pair merges, by the name that a GGUF file gives in `tokenizer.ggml.pre`.

A GGUF file carries the vocabulary and the merges but only a name for the rest. Each entry here restores what the
model's own tokenizer.json says under that name. A name that is not known is refused: a wrong cut gives other tokens
without any error.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from streamgen.errors import ModelLoadError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class BPEPreTokenizer:
    """`patterns` cut one after the other, each within the pieces of those before it; bytes are mapped last."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """A piece that is a token as a whole is taken as it is."""
    nfc: bool = False
    """Text is brought to Unicode's form NFC first."""
    add_bos: bool = False
    """A text begins with the BOS token if the file says nothing of it."""

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_LLAMA3_STYLE = BPEPreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_STYLE = BPEPreTokenizer((_QWEN2,), nfc=True)
_SINGLE_DIGITS = BPEPreTokenizer((r"\p{N}", _GPT2))

PRE_TOKENIZERS = {
    "llama-bpe": _LLAMA3_STYLE,
    "llama3": _LLAMA3_STYLE,
    "llama-v3": _LLAMA3_STYLE,
    "smaug-bpe": BPEPreTokenizer((_LLAMA3,)),
    "qwen2": _QWEN2_STYLE,
    "deepseek-r1-qwen": _QWEN2_STYLE,
    "gpt-2": BPEPreTokenizer((_GPT2,)),
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "minerva-7b": _SINGLE_DIGITS,
    "tekken": BPEPreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
}


def bpe_pre_tokenizer(name: str | None, source: object) -> BPEPreTokenizer:
    """The entry of that name. Raises ModelLoadError, with the list, if there is none."""
    if name is None:
        raise ModelLoadError(
            f"{source} does not say how its tokenizer cuts text (tokenizer.ggml.pre); it was made by an old converter. "
            "Convert the model again, or name its own tokenizer with --tokenizer."
        )
    if name not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelLoadError(
            f"{source}: the pre-tokenizer {name!r} is not known. Known: {known}. "
            "The model's own tokenizer can be named with --tokenizer."
        )
    return PRE_TOKENIZERS[name]
