"""What the server says about the model, and needs of it, to turn a body into prompt ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from streamgen.errors import ContextLengthError, InvalidRequestError, ModelNotFoundError
from streamgen.text.chat import ChatTemplate
from streamgen.text.tokenizer import Tokenizer

PROSE_CHARS = 16
"""More characters a token than any language's text has, on average: English has 4 to 5, German compounds 3, Chinese 1
to 2, an emoji a part of one."""


class SamplingDefaults(Protocol):
    """A model's own sampling defaults; None where it says nothing. `models.config.GenerationDefaults` is one."""

    @property
    def temperature(self) -> float | None: ...
    @property
    def top_p(self) -> float | None: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def min_p(self) -> float | None: ...
    @property
    def max_tokens(self) -> int | None: ...


class PromptTooLongError(ContextLengthError):
    """A ContextLengthError whose exact count was not worth the time of counting."""

    def __init__(self, limit: int, num_chars: int, param: str) -> None:
        InvalidRequestError.__init__(
            self,
            f"This model's maximum context length is {limit} tokens, but the prompt, of {num_chars} characters, has "
            "more than that.",
            param,
        )


@dataclass(frozen=True, kw_only=True)
class ServingModel:
    names: tuple[str, ...]
    """Names that clients may use; the first one is the default."""
    max_model_len: int
    created: int
    """Unix time, in seconds."""
    tokenizer: Tokenizer | None = None
    """None for a model without one: it takes prompts of token ids only."""
    chat: ChatTemplate | None = None
    """None if the model has no chat template."""
    generation: SamplingDefaults | None = None
    vocab_size: int | None = None
    """Ids that the model has rows for. Default: those of the tokenizer."""

    @property
    def num_ids(self) -> int:
        """Prompt ids must be less than this."""
        if self.vocab_size is not None:
            return self.vocab_size
        return self.tokenizer.vocab_size if self.tokenizer is not None else 0

    def resolve(self, name: str | None) -> str:
        """The name to answer with. None and "" stand for the default; raises ModelNotFoundError."""
        if not name:
            return self.names[0]
        if name not in self.names:
            raise ModelNotFoundError(name)
        return name

    def encode(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of a prompt. Raises PromptTooLongError for a text so long that it need not be encoded to know.

        If a beginning alone has half as many tokens again as fit, then so has the whole: what follows can only change
        the tokens at its very end. One that has less is made of long runs, of spaces say, for which a token may stand
        by the hundred; so a longer beginning is tried, as long as there is one.
        """
        tokenizer = self.need_tokenizer(param)
        beginning = PROSE_CHARS * self.max_model_len
        while beginning < len(text):
            if len(tokenizer.encode(text[:beginning], add_special_tokens=False)) > 1.5 * self.max_model_len:
                raise PromptTooLongError(self.max_model_len, len(text), param)
            beginning *= 2
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def need_tokenizer(self, param: str) -> Tokenizer:
        if self.tokenizer is None:
            raise InvalidRequestError("This model has no tokenizer: it takes prompts of token ids only.", param)
        return self.tokenizer
