"""From the bytes of a body to a struct, with errors that name the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from streamgen.errors import InvalidRequestError

T = TypeVar("T")

_AT = re.compile(r" - at `\$\.?([^`]*)`$")
_BACKSLASH = 0x5C
_MISSING = re.compile(r"missing required field `([^`]*)`")
_COUNTED = (b"[", b"{", b":")

MAX_PARTS = 2**18
"""Most lists, objects and their fields of a body. The parser makes them all without letting any other thread run:
millions, in 32 MiB, would hold every stream up for seconds."""


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Raises InvalidRequestError for what is no JSON, no object, has a field of the wrong type or too many parts.

    NaN and Infinity are no JSON. Nesting is bounded by the parser, which gives up long before the stack does.
    """
    if not body:
        raise InvalidRequestError("The request body is empty; it must be a JSON object.")
    if _has_more_parts(body, MAX_PARTS):
        raise InvalidRequestError(f"The request body holds more than {MAX_PARTS} lists, objects and fields.")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _explained(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"The request body is not valid JSON: {error}.") from None
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deeply.") from None


def _has_more_parts(body: bytes, limit: int) -> bool:
    """Whether there are more than `limit` opening brackets, braces and colons outside of strings."""
    if len(body) <= limit or sum(body.count(mark) for mark in _COUNTED) <= limit:
        return False
    count = position = 0
    while position >= 0 and count <= limit:
        quote = body.find(b'"', position)
        end = quote if quote >= 0 else len(body)
        count += sum(body.count(mark, position, end) for mark in _COUNTED)
        position = _end_of_string(body, quote + 1) if quote >= 0 else -1
    return count > limit


def _end_of_string(body: bytes, start: int) -> int:
    """The position behind the quote that ends the string whose text begins at `start`; -1 if it has no end."""
    while (quote := body.find(b'"', start)) >= 0:
        before = quote
        while body[before - 1] == _BACKSLASH:
            before -= 1
        if (quote - before) % 2 == 0:
            return quote + 1
        start = quote + 1
    return -1


def _explained(message: str) -> InvalidRequestError:
    at = _AT.search(message)
    path = at.group(1) if at else ""
    reason = message[: at.start()] if at else message
    missing = _MISSING.search(reason)
    if missing:
        path = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return InvalidRequestError(f"Missing required parameter: {path}.", path)
    if not path:
        return InvalidRequestError(f"The request body must be a JSON object: {reason.lower()}.")
    return InvalidRequestError(f"Invalid value for {path}: {reason.replace('`', '')}.", path)
