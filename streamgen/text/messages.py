"""Chat messages as clients send them, made into what chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from streamgen.errors import InvalidRequestError

ContentFormat = Literal["string", "parts"]
_TEXT_FIELDS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def prepare_messages(messages: Sequence[Mapping[str, Any]], content_format: ContentFormat) -> list[dict[str, Any]]:
    """Fresh messages with `content` as one string, or as a list of text parts for templates that iterate over it.

    Text parts are joined with a line break. Null fields are left out, null content is empty, and the arguments of
    tool calls are objects, not JSON text. Raises InvalidRequestError for content that is not text.
    """
    prepared = []
    for i, message in enumerate(messages):
        fields = {name: value for name, value in message.items() if value is not None}
        text = content_text(fields.get("content", ""), f"messages[{i}].content")
        fields["content"] = text if content_format == "string" else [{"type": "text", "text": text}]
        if isinstance(calls := fields.get("tool_calls"), list):
            fields["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
        prepared.append(fields)
    return prepared


def content_text(content: Any, where: str) -> str:
    """The text of a message's `content`: a string, or a list of text parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where} must be a string or a list of text parts.", "messages")
    return "\n".join(_part_text(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    field = _TEXT_FIELDS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise InvalidRequestError(f"{where} is not a text part; this model takes text only.", "messages")
    text = part.get(field)
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.{field} must be a string.", "messages")
    return text


def _with_parsed_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments := function.get("arguments"), str):
        return call
    try:
        parsed = json.loads(arguments or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": parsed}} if isinstance(parsed, dict) else call
