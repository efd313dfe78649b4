"""What each token id adds to the text, looked up at the speed of a dict."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

import tokenizers

REPLACEMENT = "\ufffd"
_PROMPT_TAIL = 32
"""Tokens at the prompt's end among which an unfinished character is looked for; mostly the last one says all."""


class Pieces(dict[int, "str | bytes"]):
    """What each id adds to the text: a `str` that is whole by itself, or `bytes` that need their neighbours.

    Filled as ids are first seen: a vocabulary has a hundred thousand, a server uses a few. Ids that do not exist and
    those in `skipped` add "".
    """

    def __init__(self, backend: tokenizers.Tokenizer, skipped: Iterable[int]) -> None:
        super().__init__(dict.fromkeys(skipped, ""))
        self._backend = backend

    def __missing__(self, token_id: int) -> str | bytes:
        token = self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        piece = "" if token is None else self.piece(token)
        if token is not None:
            # Only what exists is remembered, so that no caller can make this grow past the vocabulary.
            self[token_id] = piece
        return piece

    def piece(self, token: str) -> str | bytes:
        """What the vocabulary's spelling of a token stands for."""
        raise AssertionError(f"a subclass says what {token!r} stands for")

    def raw(self, token_id: int) -> bytes:
        piece = self[token_id]
        return piece.encode() if isinstance(piece, str) else piece

    def unfinished_tail(self, prompt_ids: Sequence[int]) -> bytes:
        """The bytes of a character that begins at the prompt's end and does not end there; mostly none."""
        tail = b""
        for token_id in reversed(prompt_ids[-_PROMPT_TAIL:]):
            tail = self.raw(token_id) + tail
            if len(tail) >= 3 or (tail and tail.isascii()):
                break
        tail = tail[-3:]
        return tail[codecs.utf_8_decode(tail, "replace", False)[1] :]
