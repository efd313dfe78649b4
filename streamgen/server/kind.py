"""Which of OpenAI's two generating endpoints a request is for."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    CHAT = "chat"
    COMPLETION = "completion"

    @property
    def id_prefix(self) -> str:
        """How the ids of its answers begin."""
        return "chatcmpl-" if self is Kind.CHAT else "cmpl-"

    @property
    def object(self) -> str:
        """`object` of a whole answer."""
        return "chat.completion" if self is Kind.CHAT else "text_completion"

    @property
    def chunk_object(self) -> str:
        """`object` of a chunk. OpenAI gives the chunks of a completion the name of the whole."""
        return "chat.completion.chunk" if self is Kind.CHAT else "text_completion"

    @property
    def prompt_param(self) -> str:
        """The field that errors about the prompt name."""
        return "messages" if self is Kind.CHAT else "prompt"
