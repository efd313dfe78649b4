"""The `prompt` of a completion: text, texts, token ids, or lists of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamgen.errors import ContextLengthError, InvalidRequestError
from streamgen.server.schema import Prompt
from streamgen.server.serving import ServingModel
from streamgen.types import TokenIds

MAX_PROMPTS = 1024


@dataclass(frozen=True)
class EncodedPrompt:
    token_ids: TokenIds
    text: str | None
    """As it was sent; None for a prompt of token ids."""


def encode_prompts(prompt: Prompt, serving: ServingModel, *, add_special_tokens: bool) -> list[EncodedPrompt]:
    """One for each prompt. Raises InvalidRequestError for empty, mixed or unknown ones, saying where."""
    if isinstance(prompt, str):
        return [_encode(prompt, serving, "prompt", add_special_tokens)]
    if not prompt:
        raise InvalidRequestError("prompt must not be empty.", "prompt")
    if isinstance(prompt[0], int):
        _check_length(len(prompt), serving)
    elif len(prompt) > MAX_PROMPTS:
        raise InvalidRequestError(f"prompt holds {len(prompt)} prompts; at most {MAX_PROMPTS} are taken.", "prompt")
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise InvalidRequestError("prompt must not mix texts, token ids and lists of token ids.", "prompt")
    if kinds == {int}:
        return [_checked([item for item in prompt if isinstance(item, int)], serving, "prompt")]
    return [
        _encode(item, serving, f"prompt[{i}]", add_special_tokens)
        if isinstance(item, str)
        else _checked(item if isinstance(item, list) else [item], serving, f"prompt[{i}]")
        for i, item in enumerate(prompt)
    ]


def _encode(text: str, serving: ServingModel, where: str, add_special_tokens: bool) -> EncodedPrompt:
    ids = serving.encode(text, "prompt", add_special_tokens=add_special_tokens)
    if not ids:
        raise InvalidRequestError(f"{where} is empty: it gives no tokens.", "prompt")
    return EncodedPrompt(tuple(ids), text)


def _checked(ids: Sequence[int], serving: ServingModel, where: str) -> EncodedPrompt:
    if not ids:
        raise InvalidRequestError(f"{where} is empty.", "prompt")
    _check_length(len(ids), serving)
    limit = serving.num_ids
    if min(ids) < 0 or max(ids) >= limit:
        at, bad = next((i, token_id) for i, token_id in enumerate(ids) if not 0 <= token_id < limit)
        message = f"{where}[{at}] is {bad}, which is no token id of this model (0 to {limit - 1})."
        raise InvalidRequestError(message, "prompt")
    return EncodedPrompt(tuple(ids), None)


def _check_length(length: int, serving: ServingModel) -> None:
    """Before the ids are looked at, which takes time: a body has room for millions."""
    if length > serving.max_model_len:
        raise ContextLengthError(serving.max_model_len, length, None, "prompt")
