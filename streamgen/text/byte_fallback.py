"""SentencePiece vocabularies with byte fallback (Llama 2, Mistral, Gemma): a token is text with word marks, or a byte.

Their decoder turns a run of byte tokens into text if the *whole* run is UTF-8, and otherwise into one U+FFFD a byte. A
stream cannot wait for the end of a run (in some scripts that is the end of the answer), so a character goes out when
its bytes are complete; should a later byte of the same run be bad, it and the rest of the run are U+FFFD, and the
characters that went out stand. That, and the single U+FFFD of a character cut off by the end, are the only differences.
"""

from __future__ import annotations

import re
from codecs import utf_8_decode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers

from streamgen.text.pieces import REPLACEMENT, Pieces

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class ByteFallbackRules:
    """What the decoder does around byte fallback: replacements in each token, and a strip at the text's start."""

    replacements: tuple[tuple[str, str], ...]
    strip_char: str
    strip_count: int


def byte_fallback_rules(stages: Sequence[dict[str, Any]]) -> ByteFallbackRules | None:
    """The rules, if the decoder is `Replace… ByteFallback Fuse [Strip]` and strips at the start only; else None."""
    rest = list(stages)
    replacements = []
    while rest and rest[0]["type"] == "Replace":
        pattern = rest.pop(0)
        if "String" not in pattern["pattern"]:
            return None
        replacements.append((pattern["pattern"]["String"], pattern["content"]))
    types = [stage["type"] for stage in rest]
    if types == ["ByteFallback", "Fuse"]:
        return ByteFallbackRules(tuple(replacements), "", 0)
    if types == ["ByteFallback", "Fuse", "Strip"] and rest[2]["stop"] == 0:
        return ByteFallbackRules(tuple(replacements), rest[2]["content"], rest[2]["start"])
    return None


class WordPieces(Pieces):
    """`bytes` of length 1 for a byte token, `str` for any other."""

    def __init__(self, backend: tokenizers.Tokenizer, skipped: Iterable[int], rules: ByteFallbackRules) -> None:
        super().__init__(backend, skipped)
        self._replacements = rules.replacements

    def piece(self, token: str) -> str | bytes:
        for old, new in self._replacements:
            token = token.replace(old, new)
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token


class ByteFallback:
    """Detokenization of a SentencePiece vocabulary with byte fallback."""

    def __init__(self, backend: tokenizers.Tokenizer, skipped: Iterable[int], rules: ByteFallbackRules) -> None:
        self.pieces = WordPieces(backend, skipped, rules)
        self._rules = rules

    def start(self, prompt_ids: Sequence[int]) -> ByteFallbackDetokenizer:
        strip = self._rules.strip_count
        if strip:
            # What the start of the text loses, the prompt has lost already, unless it decodes to nothing.
            for token_id in prompt_ids:
                text = self.pieces.raw(token_id).decode(errors="replace")
                strip = _left_to_strip(text, self._rules.strip_char, strip)
                if not strip:
                    break
        return ByteFallbackDetokenizer(
            self.pieces, self.pieces.unfinished_tail(prompt_ids), self._rules.strip_char, strip
        )

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces.raw(token_id)


def _left_to_strip(text: str, char: str, count: int) -> int:
    """How many of `count` leading `char`s may still be stripped behind `text`."""
    if not text:
        return count
    leading = len(text) - len(text.lstrip(char))
    return count - leading if leading == len(text) < count else 0


class ByteFallbackDetokenizer:
    """Joins word pieces, and bytes into characters."""

    __slots__ = ("_bad_run", "_pending", "_pieces", "_strip", "_strip_char")

    def __init__(self, pieces: WordPieces, pending: bytes, strip_char: str, strip: int) -> None:
        self._pieces = pieces
        self._pending = pending
        self._strip_char = strip_char
        self._strip = strip
        self._bad_run = False

    def push(self, token_id: int) -> str:
        piece = self._pieces[token_id]
        if isinstance(piece, bytes):
            text = self._push_byte(piece)
        elif not piece:
            return ""
        else:
            text = REPLACEMENT * len(self._pending) + piece if self._pending else piece
            self._pending = b""
            self._bad_run = False
        return self._stripped(text) if self._strip and text else text

    def _push_byte(self, byte: bytes) -> str:
        if self._bad_run:
            return REPLACEMENT
        data = self._pending + byte
        try:
            text, used = utf_8_decode(data, "strict", False)
        except UnicodeDecodeError:
            self._bad_run = True
            self._pending = b""
            return REPLACEMENT * len(data)
        self._pending = data[used:]
        return text

    def _stripped(self, text: str) -> str:
        leading = min(self._strip, len(text) - len(text.lstrip(self._strip_char)))
        self._strip = _left_to_strip(text, self._strip_char, self._strip)
        return text[leading:]

    def flush(self) -> str:
        text = REPLACEMENT if self._pending else ""
        self._pending = b""
        return text
