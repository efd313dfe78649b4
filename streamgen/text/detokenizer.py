"""Token ids to text, one at a time: what every incremental detokenizer does, and the choice of the right one.

The joined pieces of text are the decoded prompt and output together, less the decoded prompt. Three ways lead there:

* `ByteLevelDetokenizer`: a token is a string of bytes (GPT-2, Llama 3, Qwen). Exact, and almost free.
* `ByteFallbackDetokenizer`: a token is text with word marks, or one byte (SentencePiece: Llama 2, Mistral, Gemma).
* `WindowDetokenizer`: any other decoder, asked to decode a few tokens of context with and without the new one.

Text that generation cuts off inside a character ends in one U+FFFD, in a stream and in a whole answer alike.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import tokenizers

from streamgen.text.byte_fallback import ByteFallback, byte_fallback_rules
from streamgen.text.byte_level import ByteLevel
from streamgen.text.window import Window


class IncrementalDetokenizer(Protocol):
    """Turns the output tokens of one sequence into text. Holds back at most one unfinished character's bytes."""

    def push(self, token_id: int) -> str:
        """The text that `token_id` makes certain: "" while a character is unfinished, or for a skipped token."""

    def flush(self) -> str:
        """What was held back, now that no token follows: "" or one U+FFFD. Ends the detokenizer's life."""


class Detokenization(Protocol):
    """How one tokenizer's ids become text: what the detokenizers of all its sequences share."""

    def start(self, prompt_ids: Sequence[int]) -> IncrementalDetokenizer:
        """A detokenizer for what follows `prompt_ids`. Looks at the prompt's ends only, whatever its length."""

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 of one token by itself, in the middle of a text; may be a part of a character."""


def decoder_stages(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """The backend's decoder as data: its stages in order, each with a `type`."""
    decoder = backend.decoder
    if decoder is None:
        return []
    state: dict[str, Any] = json.loads(decoder.__getstate__())
    if state["type"] == "Sequence":
        return list(state["decoders"])
    return [state]


def detokenization(backend: tokenizers.Tokenizer, skipped: frozenset[int]) -> Detokenization:
    """The fastest exact way for this backend's decoder. `skipped` are the ids that add nothing."""
    stages = decoder_stages(backend)
    if [stage["type"] for stage in stages] in (["ByteLevel"], ["ByteLevel", "Fuse"]):
        return ByteLevel(backend, skipped)
    if (rules := byte_fallback_rules(stages)) is not None:
        return ByteFallback(backend, skipped, rules)
    return Window(backend, skipped)
