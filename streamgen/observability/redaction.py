"""Keeps secrets out of log lines, and control characters out of terminals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

REDACTED = "[redacted]"
MAX_CHARS = 8192
"""Longest text in a log line; a traceback may have more."""
_SECRET_NAMES = frozenset(
    {
        *("authorization", "proxy-authorization", "cookie", "set-cookie", "sec-websocket-protocol"),
        *("key", "keys", "api-key", "api-keys", "apikey", "x-api-key", "password", "secret", "token", "hf-token"),
    }
)
_SECRET_TEXT = re.compile(
    r"""(?ix)
    (?<=bearer\s) [^\s"',;]+            # an Authorization header's value
    | (?<=streamgen\.key\.) [\w-]+      # a key as a WebSocket's sub-protocol
    | (?<=api_key=) [^\s&"']+           # a key in a query
    | (?<=api-key=) [^\s&"']+
    | \b(?:sk|hf)[-_][A-Za-z0-9_-]{16,} # what OpenAI's and Hugging Face's keys look like
    """
)
_TEXT_ONLY = re.compile(r"[^\x20-\x7e]")


class Redaction:
    """A log processor. Replaces the values of fields that hold secrets, and secrets within any text.

    `secrets` are the keys that the server was configured with: they are replaced wherever they occur.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
        return {name: self._field(name, value) for name, value in event.items()}

    def _field(self, name: Any, value: Any) -> Any:
        if isinstance(name, str) and name.lower().replace("_", "-") in _SECRET_NAMES and value is not None:
            return REDACTED
        limit = None if name in {"exception", "stack"} else MAX_CHARS
        return self._value(value, limit)

    def _value(self, value: Any, limit: int | None) -> Any:
        if isinstance(value, bytes):
            value = value.decode("utf-8", "backslashreplace")
        if isinstance(value, str):
            return self._text(value if limit is None or len(value) <= limit else value[:limit] + "…")
        if isinstance(value, Mapping):
            return {name: self._field(name, item) for name, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._value(item, limit) for item in value]
        if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        return self._value(repr(value), limit)

    def _text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        return _SECRET_TEXT.sub(REDACTED, text)


def escape_controls(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """A log processor for terminals: what is not printable is shown as an escape, a traceback's line ends excepted."""
    return {
        escaped(name): "\n".join(map(escaped, value.split("\n"))) if name == "exception" else _escaped_value(value)
        for name, value in event.items()
    }


def escaped(text: str) -> str:
    """`text` with all that could move a cursor, start a line or turn the reading direction shown as an escape."""
    if text.isprintable():
        return text
    return _TEXT_ONLY.sub(
        lambda found: found[0] if found[0].isprintable() else found[0].encode("unicode_escape").decode("ascii"), text
    )


def _escaped_value(value: Any) -> Any:
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, dict):
        return {escaped(str(name)): _escaped_value(item) for name, item in value.items()}
    return [_escaped_value(item) for item in value] if isinstance(value, list) else value
