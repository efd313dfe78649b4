"""From the bytes of a body to a struct, with errors that name the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from streamgen.errors import InvalidRequestError

T = TypeVar("T")

_AT = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Raises InvalidRequestError for what is no JSON, no object, or has a field of the wrong type.

    NaN and Infinity are no JSON. Nesting is bounded by the parser, which gives up long before the stack does.
    """
    if not body:
        raise InvalidRequestError("The request body is empty; it must be a JSON object.")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _explained(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"The request body is not valid JSON: {error}.") from None
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deeply.") from None


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
