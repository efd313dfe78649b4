"""Byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM): each token is a string of bytes, the text their UTF-8."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable, Sequence

import tokenizers

from streamgen.text.pieces import REPLACEMENT, Pieces


def _byte_of_char() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 stands for itself, the rest for characters from U+0100 on.

    Source: `bytes_to_unicode` of GPT-2's encoder.py.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_of_char()


class BytePieces(Pieces):
    def piece(self, token: str) -> str | bytes:
        try:
            data = bytes([BYTE_OF_CHAR[char] for char in token])
        except KeyError:
            # An added token is spelt plainly; one with a character outside the table (a space, say) is taken as it is.
            return token
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data


class ByteLevel:
    """Detokenization of a byte-level vocabulary."""

    def __init__(self, backend: tokenizers.Tokenizer, skipped: Iterable[int]) -> None:
        self.pieces = BytePieces(backend, skipped)

    def start(self, prompt_ids: Sequence[int]) -> ByteLevelDetokenizer:
        return ByteLevelDetokenizer(self.pieces, self.pieces.unfinished_tail(prompt_ids))

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces.raw(token_id)


class ByteLevelDetokenizer:
    """An incremental UTF-8 decoder over the tokens' bytes. Bytes that cannot become a character are U+FFFD at once."""

    __slots__ = ("_pending", "_pieces")

    def __init__(self, pieces: BytePieces, pending: bytes) -> None:
        self._pieces = pieces
        self._pending = pending

    def push(self, token_id: int) -> str:
        piece = self._pieces[token_id]
        if not self._pending and type(piece) is str:
            return piece
        data = self._pending + (piece.encode() if isinstance(piece, str) else piece)
        text, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def flush(self) -> str:
        text = REPLACEMENT if self._pending else ""
        self._pending = b""
        return text
