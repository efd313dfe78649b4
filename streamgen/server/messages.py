"""The messages of a chat, and the prompt that the model's template makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamgen.errors import InvalidRequestError
from streamgen.server.schema import Message, TemplateFields
from streamgen.server.serving import ServingModel
from streamgen.types import TokenIds

TEMPLATE_KWARGS = frozenset(
    {"enable_thinking", "thinking", "thinking_budget", "preserve_thinking", "reasoning_effort", "date_string"}
)
"""Template variables that a client may set. All others are refused: some would reach into how a template is run."""
MAX_KWARG_CHARS = 256
MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 16384
"""Of all messages together. A template loops over them in Python."""


def encode_chat(messages: Sequence[Message], fields: TemplateFields, serving: ServingModel) -> TokenIds:
    """Prompt ids. Raises InvalidRequestError for what the server, or the model's own template, refuses.

    The template writes the special tokens itself, so that the tokenizer adds none.
    """
    serving.need_tokenizer("messages")
    if serving.chat is None:
        raise InvalidRequestError(
            "This model has no chat template, so that it serves /v1/completions only. "
            "The server's operator can give one with --chat-template.",
            "messages",
        )
    if not messages:
        raise InvalidRequestError("messages must not be empty.", "messages")
    _check_number(messages)
    kwargs = _template_kwargs(fields)
    continued = bool(fields.continue_final_message)
    generation_prompt = fields.add_generation_prompt
    if continued and generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other.", "continue_final_message"
        )
    if continued and messages[-1].role != "assistant":
        raise InvalidRequestError(
            "continue_final_message needs a last message of the assistant's.", "continue_final_message"
        )
    text = serving.chat.render(
        [_plain(message, i) for i, message in enumerate(messages)],
        add_generation_prompt=not continued if generation_prompt is None else generation_prompt,
        continue_final_message=continued,
        **kwargs,
    )
    ids = serving.encode(text, "messages", add_special_tokens=False)
    if not ids:
        raise InvalidRequestError("The chat template makes an empty prompt of these messages.", "messages")
    return tuple(ids)


def _check_number(messages: Sequence[Message]) -> None:
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequestError(
            f"messages holds {len(messages)} messages; at most {MAX_MESSAGES} are taken.", "messages"
        )
    parts = sum(len(message.content) for message in messages if isinstance(message.content, list))
    if parts > MAX_CONTENT_PARTS:
        raise InvalidRequestError(
            f"messages holds {parts} content parts; at most {MAX_CONTENT_PARTS} are taken.", "messages"
        )


def _plain(message: Message, i: int) -> dict[str, Any]:
    """The message as templates take it. `developer` is OpenAI's newer word for `system`, which templates know."""
    where = f"messages[{i}]"
    for name in ("tool_calls", "function_call", "audio"):
        if getattr(message, name):
            raise InvalidRequestError(f"{where}.{name} is not supported by this server.", f"{where}.{name}")
    plain: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    content = message.content
    if content is None:
        raise InvalidRequestError(f"{where}.content must be a text or a list of text parts.", f"{where}.content")
    if isinstance(content, str):
        plain["content"] = content
    else:
        plain["content"] = [{"type": "text", "text": text} for text in _texts(message, where)]
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _texts(message: Message, where: str) -> list[str]:
    assert isinstance(message.content, list)
    if not message.content:
        raise InvalidRequestError(f"{where}.content must not be an empty list.", f"{where}.content")
    texts = []
    for j, part in enumerate(message.content):
        if part.type != "text":
            raise InvalidRequestError(
                f"{where}.content[{j}] is of type {part.type[:64]!r}; this model reads text only.",
                f"{where}.content[{j}].type",
            )
        if part.text is None:
            raise InvalidRequestError(f"{where}.content[{j}] has no text.", f"{where}.content[{j}].text")
        texts.append(part.text)
    return texts


def _template_kwargs(fields: TemplateFields) -> dict[str, Any]:
    if fields.chat_template is not None:
        raise InvalidRequestError("A chat template of the client's is not accepted.", "chat_template")
    kwargs = fields.chat_template_kwargs or {}
    for name, value in kwargs.items():
        if name not in TEMPLATE_KWARGS:
            raise InvalidRequestError(
                f"chat_template_kwargs.{name[:64]} is not accepted; these are: {', '.join(sorted(TEMPLATE_KWARGS))}.",
                "chat_template_kwargs",
            )
        if not isinstance(value, (bool, int, float, str)) and value is not None:
            raise InvalidRequestError(f"chat_template_kwargs.{name} must be a plain value.", "chat_template_kwargs")
        if isinstance(value, str) and len(value) > MAX_KWARG_CHARS:
            raise InvalidRequestError(f"chat_template_kwargs.{name} is too long.", "chat_template_kwargs")
    return dict(kwargs)
