"""What the server says about the model, and needs of it, to turn a body into prompt ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from streamgen.errors import InvalidRequestError, ModelNotFoundError
from streamgen.text.chat import ChatTemplate
from streamgen.text.tokenizer import Tokenizer


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

    def need_tokenizer(self, param: str) -> Tokenizer:
        if self.tokenizer is None:
            raise InvalidRequestError("This model has no tokenizer: it takes prompts of token ids only.", param)
        return self.tokenizer
