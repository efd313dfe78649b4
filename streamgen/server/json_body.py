"""From the bytes of a body to a struct, with errors that name the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from streamgen.errors import InvalidRequestError, RequestTooLargeError

T = TypeVar("T")

_AT = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_NO_PARTS = bytes(set(range(256)) - set(b"[{:"))

MAX_PARTS = 2**18
"""Most lists, objects, fields and strings of a body. The parser makes them all without letting any other thread run:
millions would hold every stream up for seconds."""
MAX_ITEMS = 2**21
"""Most items of lists, and fields: of whatever a comma stands behind. More than a body of token ids has use for."""


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Raises InvalidRequestError for what is no JSON, no object, has a field of the wrong type or too many parts.

    NaN and Infinity are no JSON. Nesting is bounded by the parser, which gives up long before the stack does.
    """
    if not body:
        raise InvalidRequestError("The request body is empty; it must be a JSON object.")
    if len(body) > MAX_PARTS:
        _check_parts(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _explained(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"The request body is not valid JSON: {error}.") from None
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deeply.") from None


def body_too_large(limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"The request body is larger than the {limit} bytes that this server accepts.")


def _check_parts(body: bytes) -> None:
    """Raises InvalidRequestError. Each operation goes over all of the body at once, and none of them over its parts one
    by one: these are the millions that are to be refused.
    """
    # What stands in strings is counted too, which makes the numbers too large and never too small.
    if _num_parts(body) + body.count(b'"') // 2 <= MAX_PARTS and body.count(b",") <= MAX_ITEMS:
        return
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    num_strings = plain.count(b'"') // 2
    if num_strings <= MAX_PARTS:
        outside = b"".join(plain.split(b'"')[::2])
        if _num_parts(outside) + num_strings <= MAX_PARTS and outside.count(b",") <= MAX_ITEMS:
            return
    raise InvalidRequestError(
        f"The request body holds more than {MAX_PARTS} lists, objects, fields and strings, or {MAX_ITEMS} items."
    )


def _num_parts(text: bytes) -> int:
    return len(text.translate(None, _NO_PARTS))


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
