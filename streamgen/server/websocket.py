"""`/v1/ws` as an ASGI application: the handshake, the sessions that are open, and their end when the server drains."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from streamgen.errors import AuthenticationError, DrainingError, StreamgenError
from streamgen.server.ws_handshake import bearer_key, key_offered, negotiate
from streamgen.server.ws_protocol import Protocol
from streamgen.server.ws_relay import Backend
from streamgen.server.ws_resume import CallLater, ResumeStore
from streamgen.server.ws_session import Message, Receive, Send, Session

REFUSED = 403
"""Status of every refusal before the upgrade that is the client's fault, as the WebSocket world expects it."""

LAST_WORDS = 1.0
"""Seconds for the error and close frames of sockets that are cut off."""


@dataclass(frozen=True, kw_only=True)
class WebSocketLimits:
    max_message_bytes: int
    replay_bytes: int
    """Bytes of frames kept for one resumable request."""
    max_requests: int = 64
    """Requests that may be open on one socket."""
    resume_grace: float = 60.0
    """Seconds for which a resumable request is kept without a reader, or after its end."""
    max_resumable: int = 1024
    max_resumable_bytes: int = 64 * 2**20
    """Bytes of frames kept for all resumable requests together."""


class WebSocketEndpoint:
    """Owned by the event loop; one for each application.

    `check_key` gives the tenant of a key (None if the client sent none) or raises AuthenticationError; `check_origin`
    raises PermissionDeniedError for the Origin header of a foreign site (None if the client, then no browser, sent
    none; the second argument is the Host header).
    """

    def __init__(
        self,
        backend: Backend,
        *,
        check_key: Callable[[str | None], str],
        check_origin: Callable[[str | None, str | None], None],
        limits: WebSocketLimits,
        call_later: CallLater | None = None,
    ) -> None:
        self._backend = backend
        self._check_key = check_key
        self._check_origin = check_origin
        self._limits = limits
        self._store = ResumeStore(
            call_later=call_later or (lambda delay, run: asyncio.get_running_loop().call_later(delay, run)),
            grace=limits.resume_grace,
            max_requests=limits.max_resumable,
            max_bytes=limits.max_resumable_bytes,
        )
        self._sessions: set[Session] = set()
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def num_sockets(self) -> int:
        return len(self._sessions)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        connect = await receive()
        assert connect["type"] == "websocket.connect"
        try:
            key = self._key(scope)
            self._check_origin(_header(scope, b"origin"), _header(scope, b"host"))
            self._check_key(key)
            subprotocol = negotiate(scope["subprotocols"])
            if self._draining:
                raise DrainingError("The server is shutting down.")
        except StreamgenError as error:
            await _refuse(scope, send, error)
            return
        await send({"type": "websocket.accept", "subprotocol": subprotocol, "headers": []})
        session_id = secrets.token_urlsafe(18)
        session = Session(
            receive,
            send,
            Protocol(
                session_id,
                max_requests=self._limits.max_requests,
                max_message_bytes=self._limits.max_message_bytes,
            ),
            self._backend,
            self._store,
            authenticate=lambda: self._check_key(key),
            correlation_id=scope.get("state", {}).get("request_id") or f"ws-{secrets.token_hex(8)}",
            replay_bytes=self._limits.replay_bytes,
        )
        self._sessions.add(session)
        self._empty.clear()
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
            if not self._sessions:
                self._empty.set()

    async def drain(self, timeout: float) -> None:
        """Refuse new sockets and requests; close each socket with 1001 when its requests are done, or after `timeout`
        seconds with an error for each that is not. Returns when no socket is left, or none that can be reached.
        """
        self._draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await asyncio.gather(*(session.drain() for session in self._sessions), return_exceptions=True)
                await self._empty.wait()
        # What is cut off here gets a moment to read its last frames; a reader that is stuck gets none of them.
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await asyncio.gather(*(session.cut_off() for session in self._sessions), return_exceptions=True)
                await self._empty.wait()
        self._store.clear()

    def _key(self, scope: Message) -> str | None:
        """The key of the Authorization header, else the one among the sub-protocols, else None."""
        header = _header(scope, b"authorization")
        return key_offered(scope["subprotocols"]) if header is None else bearer_key(header)


def _header(scope: Message, name: bytes) -> str | None:
    values: list[bytes] = [value for key, value in scope["headers"] if key == name]
    return values[0].decode("latin-1") if values else None


async def _refuse(scope: Message, send: Send, error: StreamgenError) -> None:
    """Answer the handshake with an HTTP error, whose body says why, where the server can send one."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": error.ws_code, "reason": ""})
        return
    status = REFUSED if isinstance(error, AuthenticationError) else error.status
    headers = {"content-type": "application/json", **error.headers()}
    start: dict[str, Any] = {
        "type": "websocket.http.response.start",
        "status": status,
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
    }
    await send(start)
    await send({"type": "websocket.http.response.body", "body": orjson.dumps(error.body())})
