"""Detokenizing with a decoder that is known only by what it does: decode a few tokens with and without the new one."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers

from streamgen.text.pieces import REPLACEMENT

_CONTEXT = 6
"""Tokens before the new one that a decoder may look at: a word start, a repeated token, a suffix mark."""
_HELD = 8
"""Most tokens without text that may wait for a character to complete. Four bytes make one; the rest are not coming."""


class Window:
    """Detokenization by any decoder of the `tokenizers` library."""

    def __init__(self, backend: tokenizers.Tokenizer, skipped: frozenset[int]) -> None:
        self._backend = backend
        self._skipped = skipped

    def adds_text(self, token_id: int) -> bool:
        if token_id in self._skipped or not 0 <= token_id < 2**32:
            return False
        return self._backend.id_to_token(token_id) is not None

    def decode(self, ids: list[int]) -> str:
        return self._backend.decode(ids, skip_special_tokens=False)

    def start(self, prompt_ids: Sequence[int]) -> WindowDetokenizer:
        context: list[int] = []
        for token_id in reversed(prompt_ids):
            if self.adds_text(token_id):
                context.append(token_id)
                if len(context) == _CONTEXT:
                    break
        return WindowDetokenizer(self, context[::-1])

    def token_bytes(self, token_id: int) -> bytes:
        return self.decode([token_id]).encode() if self.adds_text(token_id) else b""


class WindowDetokenizer:
    """Holds the last few tokens that added text, and what they decode to."""

    __slots__ = ("_ids", "_num_context", "_prefix", "_window")

    def __init__(self, window: Window, context: list[int]) -> None:
        self._window = window
        self._ids = context
        self._num_context = len(context)
        # A prompt that ends inside a character: its U+FFFD is not text that the output must repeat.
        self._prefix = window.decode(context).rstrip(REPLACEMENT)

    def push(self, token_id: int) -> str:
        if not self._window.adds_text(token_id):
            return ""
        self._ids.append(token_id)
        text = self._window.decode(self._ids)
        if text.endswith(REPLACEMENT) and len(self._ids) - self._num_context < _HELD:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        return self._advance(self._window.decode(self._ids)) if len(self._ids) > self._num_context else ""

    def _advance(self, text: str) -> str:
        new = text[_common_prefix(self._prefix, text) :]
        self._ids = self._ids[-_CONTEXT:]
        self._num_context = len(self._ids)
        self._prefix = self._window.decode(self._ids)
        return new


def _common_prefix(a: str, b: str) -> int:
    """Length of the longest common prefix. Not all of `a` if the decoder changed its last character."""
    if b.startswith(a):
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
