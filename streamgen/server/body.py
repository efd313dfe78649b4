"""Reads a request's body: counted before it is kept, and not for ever."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope

from streamgen.errors import InvalidRequestError, RequestTimeoutError, RequestTooLargeError
from streamgen.server.exchange import of

BODY_TIMEOUT = 60.0
"""Seconds that a client gets to send its body."""


class ClientGoneError(Exception):
    """The client left before its request was whole, so that there is nobody to answer."""


async def read_body(scope: Scope, receive: Receive, *, limit: int, seconds: float | None = None) -> bytes:
    """Raises RequestTooLargeError past `limit` bytes, RequestTimeoutError after `seconds`, ClientGoneError."""
    seconds = BODY_TIMEOUT if seconds is None else seconds
    _check_declared(scope, limit)
    try:
        async with asyncio.timeout(seconds):
            body = await _read(receive, limit)
    except TimeoutError:
        raise RequestTimeoutError(f"The request body did not arrive within {seconds:g} seconds.") from None
    of(scope).request_bytes = len(body)
    return body


async def _read(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _check_declared(scope: Scope, limit: int) -> None:
    for name, value in scope["headers"]:
        if name == b"content-length":
            # More digits than that are no size that anybody has.
            if not value.isdigit() or len(value) > 18:
                raise InvalidRequestError("The Content-Length header is not a number of bytes.")
            if int(value) > limit:
                raise _too_large(limit)
        elif name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise InvalidRequestError("Compressed request bodies are not accepted.")


def _too_large(limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"The request body is larger than the {limit} bytes that this server accepts.")
