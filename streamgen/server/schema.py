"""Request bodies as msgspec structs: what is known, of which type. Unknown fields are ignored, as OpenAI does.

Null means "as if absent" for every optional field. Types are strict: `true` and `1.5` are no integers, "5" is none.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from streamgen.server.unsupported import CHAT_UNSUPPORTED, COMPLETION_UNSUPPORTED

Prompt: TypeAlias = str | list[str | int | list[int]]
Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_event_ids: bool | None = None


class ContentPart(msgspec.Struct):
    """Only `text` is served; whatever else a part holds (an image's URL, say) is never looked at."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None
    refusal: str | None = None


class GenerationBody(msgspec.Struct):
    """What both endpoints take."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    priority: int | None = None


class TemplateFields(Protocol):
    """How messages become a prompt. (msgspec structs have one base, so that two of them repeat these fields.)"""

    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template: Any
    chat_template_kwargs: dict[str, Any] | None


class ChatBody(GenerationBody, kw_only=True):
    messages: list[Message]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(GenerationBody, kw_only=True):
    prompt: Prompt
    echo: bool | None = None
    add_special_tokens: bool | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """vLLM's `/tokenize`: a prompt, or messages."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    tools: Any = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    tokens: list[int]
    model: str | None = None


def _with_unsupported(body: type[msgspec.Struct], names: tuple[str, ...]) -> Any:
    """A subclass of `body` that also keeps the values of the known but unsupported fields, for `check_unsupported`."""
    fields = [(name, Any, None) for name in names]
    return msgspec.defstruct(f"{body.__name__}AsSent", fields, bases=(body,), kw_only=True, module=__name__)


CHAT_DECODER: msgspec.json.Decoder[ChatBody] = msgspec.json.Decoder(
    _with_unsupported(ChatBody, tuple(CHAT_UNSUPPORTED))
)
COMPLETION_DECODER: msgspec.json.Decoder[CompletionBody] = msgspec.json.Decoder(
    _with_unsupported(CompletionBody, tuple(COMPLETION_UNSUPPORTED))
)
TOKENIZE_DECODER = msgspec.json.Decoder(TokenizeBody)
DETOKENIZE_DECODER = msgspec.json.Decoder(DetokenizeBody)
