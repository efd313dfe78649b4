"""Reads requests' bodies: counted before they are kept, not for ever, and no longer once the server drains."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.types import Receive, Scope

from streamgen.errors import DrainingError, InvalidRequestError, RequestTimeoutError
from streamgen.server.exchange import of
from streamgen.server.held_bytes import HeldBytes, Hold
from streamgen.server.json_body import body_too_large

BODY_TIMEOUT = 60.0
"""Seconds that a client gets to send its body."""


class ClientGoneError(Exception):
    """The client left before its request was whole, so that there is nobody to answer."""


class Bodies:
    """Owned by the event loop; one for each app. `limit` is for one body, `held` for all of them together."""

    def __init__(self, *, limit: int, held: HeldBytes) -> None:
        self._limit = limit
        self._held = held
        self._reading: set[asyncio.Timeout] = set()
        self._draining = False

    @contextlib.asynccontextmanager
    async def received(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body; it counts as held until the context is left.

        Raises RequestTooLargeError, QueueFullError, RequestTimeoutError, DrainingError, ClientGoneError.
        """
        _check_declared(scope, self._limit)
        with self._held.open() as hold:
            body = await self._read(receive, hold)
            of(scope).request_bytes = len(body)
            yield body

    def drain(self) -> None:
        """Refuse what has not come whole: a client that sends no more would hold up the end of the server."""
        self._draining = True
        now = asyncio.get_running_loop().time()
        for timeout in self._reading:
            if not timeout.expired():
                timeout.reschedule(now)

    async def _read(self, receive: Receive, hold: Hold) -> bytes:
        seconds = 0.0 if self._draining else BODY_TIMEOUT
        timeout = asyncio.timeout(seconds)
        self._reading.add(timeout)
        try:
            async with timeout:
                return await _read(receive, self._limit, hold)
        except TimeoutError:
            if self._draining:
                raise DrainingError("The server is shutting down.") from None
            raise RequestTimeoutError(f"The request body did not arrive within {seconds:g} seconds.") from None
        finally:
            self._reading.discard(timeout)


async def _read(receive: Receive, limit: int, hold: Hold) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise body_too_large(limit)
        hold.resize(size)
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
                raise body_too_large(limit)
        elif name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise InvalidRequestError("Compressed request bodies are not accepted.")
