"""What a stream's client gets: Deltas rendered as OpenAI's chunk objects. Pure.

Almost every chunk is a text in an otherwise constant object, so that object is rendered once, cut where the text
goes, and a chunk costs two concatenations and the escaping of a few characters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from streamgen.server.kind import Kind
from streamgen.server.prepare import Prepared
from streamgen.server.usage import usage_json
from streamgen.types import Delta, TokenIds, Usage

_PLACEHOLDER = "\x00text\x00"


def escape_text(text: str) -> bytes:
    """`text` as a JSON string, without characters that some readers take for the end of a line."""
    return _without_line_ends(orjson.dumps(text), text.isascii())


def dump_json(value: Any) -> bytes:
    """As compact JSON, without such characters; lone surrogates, which are no text, become U+FFFD."""
    try:
        data = orjson.dumps(value)
    except TypeError:
        data = orjson.dumps(_repaired(value))
    return _without_line_ends(data, data.isascii())


def _without_line_ends(data: bytes, ascii_only: bool) -> bytes:
    if ascii_only:
        return data
    # U+0085, U+2028 and U+2029 end lines for Python's splitlines and for JavaScript before 2019. In JSON they can
    # only stand inside strings.
    return (
        data.replace(b"\xc2\x85", b"\\u0085").replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    )


def _repaired(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="surrogatepass").decode(errors="replace")
    if isinstance(value, dict):
        return {_repaired(key): _repaired(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_repaired(item) for item in value]
    return value


class ChunkRenderer:
    """Renders the chunks of one request, in the order of its Deltas. Owned by whoever reads the request.

    `head` and `tail` are put around every chunk: the framing of the transport.
    """

    def __init__(
        self, prepared: Prepared, *, answer_id: str, created: int, head: bytes = b"", tail: bytes = b""
    ) -> None:
        self._prepared = prepared
        self._head = head
        self._tail = tail
        self._chat = prepared.kind is Kind.CHAT
        self._envelope = {
            "id": answer_id,
            "object": prepared.kind.chunk_object,
            "created": created,
            "model": prepared.model,
        }
        self._begun: set[int] = set()
        self._held: dict[int, TokenIds] = {}
        self._prompt_ids_sent = False
        self.continuous_usage = prepared.continuous_usage
        self._constant = not prepared.return_token_ids and not prepared.continuous_usage
        self._cut: dict[int, tuple[bytes, bytes]] = {}

    def render(self, deltas: Iterable[Delta], prompt: int, usage: Usage) -> list[bytes]:
        """Chunks of one prompt's Deltas: none for a Delta without news, two for one with a text and an end.

        `usage` is what `continuous_usage_stats` reports.
        """
        first = prompt * self._prepared.params.n
        chunks: list[bytes] = []
        for delta in deltas:
            choice = first + delta.index
            cut = self._cut.get(choice)
            if cut is not None and delta.finish_reason is None:
                text = delta.text
                if text:
                    escaped = orjson.dumps(text) if text.isascii() else escape_text(text)
                    chunks.append(cut[0] + escaped + cut[1])
                continue
            self._general(choice, delta, usage, chunks)
        return chunks

    def usage(self, usage: Usage) -> bytes:
        """The chunk that `include_usage` asks for, without choices."""
        return self._framed({**self._envelope, "choices": [], "usage": usage_json(usage)})

    def _general(self, choice: int, delta: Delta, usage: Usage, chunks: list[bytes]) -> None:
        """Any chunk, from a plain dict: the first of a choice, the last, and those with token ids or usage."""
        token_ids = self._held.pop(choice, ()) + delta.token_ids
        begun = choice in self._begun
        text = delta.text
        if not begun and self._prepared.echoes and (text or delta.finish_reason is not None):
            text = self._prepared.echoes[choice // self._prepared.params.n] + text
        if text:
            chunks.append(self._chunk(choice, text, token_ids, usage, begun=begun))
            token_ids = ()
        if delta.finish_reason is None:
            if not text and self._prepared.return_token_ids:
                self._held[choice] = token_ids
            elif text and self._constant:
                self._cut[choice] = self._template(choice)
            return
        begun = choice in self._begun
        chunks.append(self._chunk(choice, "", token_ids, usage, begun=begun, finish=delta))
        self._cut.pop(choice, None)

    def _chunk(
        self, choice: int, text: str, token_ids: TokenIds, usage: Usage, *, begun: bool, finish: Delta | None = None
    ) -> bytes:
        entry: dict[str, Any] = {"index": choice}
        if self._chat:
            role = {} if begun else {"role": "assistant"}
            entry["delta"] = {**role, "content": text} if text or not begun else {}
        else:
            entry["text"] = text
        entry["logprobs"] = None
        entry["finish_reason"] = finish.finish_reason if finish else None
        if finish:
            entry["stop_reason"] = finish.stop_reason
        chunk: dict[str, Any] = {**self._envelope, "choices": [entry]}
        if self._prepared.return_token_ids:
            entry["token_ids"] = token_ids
            if not begun and not self._chat:
                entry["prompt_token_ids"] = self._prepared.prompts[choice // self._prepared.params.n]
            elif not self._prompt_ids_sent and self._chat:
                chunk["prompt_token_ids"] = self._prepared.prompts[0]
                self._prompt_ids_sent = True
        if self._prepared.continuous_usage:
            chunk["usage"] = usage_json(usage)
        self._begun.add(choice)
        return self._framed(chunk)

    def _template(self, choice: int) -> tuple[bytes, bytes]:
        nothing = Usage(prompt_tokens=0, completion_tokens=0)
        before, _, after = self._chunk(choice, _PLACEHOLDER, (), nothing, begun=True).partition(dump_json(_PLACEHOLDER))
        return before, after

    def _framed(self, chunk: dict[str, Any]) -> bytes:
        return self._head + dump_json(chunk) + self._tail
