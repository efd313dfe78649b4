"""`/v1/ws` as an ASGI application: the handshake, the sessions that are open, and their end when the server drains."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from streamgen.errors import DrainingError, RequestError, StreamgenError
from streamgen.server.auth import check_key, offered_subprotocols
from streamgen.server.exchange import of
from streamgen.server.generate import start_chunks
from streamgen.server.kind import Kind
from streamgen.server.state import ServerState
from streamgen.server.ws_protocol import Protocol, negotiate
from streamgen.server.ws_refusal import refuse_socket
from streamgen.server.ws_relay import Backend, ChunkStream, Relay
from streamgen.server.ws_resume import CallLater, ResumeStore, Timer
from streamgen.server.ws_session import Session

LAST_WORDS = 1.0
"""Seconds for the error and close frames of sockets that are cut off."""

access_log = structlog.get_logger("streamgen.access")


class UpgradeRequiredError(RequestError):
    """Plain HTTP, where a WebSocket's handshake is expected (RFC 9110, section 15.5.22)."""

    status = 426
    code = "upgrade_required"

    def headers(self) -> dict[str, str]:
        return {"Upgrade": "websocket", "Connection": "Upgrade"}


async def upgrade_required(_request: Request) -> Response:
    """The answer to a GET that asks for no upgrade."""
    raise UpgradeRequiredError("This is a WebSocket: ask for it with an upgrade.")


@dataclass(frozen=True, kw_only=True)
class WebSocketLimits:
    max_requests: int = 64
    """Requests that may be open on one socket."""
    resume_grace: float = 60.0
    """Seconds for which a resumable request is kept without a reader, or after its end."""
    max_resumable: int = 1024
    """Requests that are kept for resuming, on all sockets together."""
    max_resumable_bytes: int = 64 * 2**20
    """Bytes of frames that are kept, for all of them together."""


class WebSocketEndpoint:
    """Owned by the event loop; one for each application. The Gate has checked key and origin before it is called."""

    def __init__(
        self,
        state: ServerState,
        *,
        backend: Backend | None = None,
        limits: WebSocketLimits | None = None,
        call_later: CallLater | None = None,
    ) -> None:
        self._state = state
        self._backend = backend or SharedBackend(state)
        self._limits = limits or WebSocketLimits()
        self._store = ResumeStore(
            call_later=call_later or _call_later,
            grace=self._limits.resume_grace,
            max_requests=self._limits.max_resumable,
            max_bytes=self._limits.max_resumable_bytes,
        )
        self._sessions: set[Session] = set()
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def num_sockets(self) -> int:
        return len(self._sessions)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connect = await receive()
        assert connect["type"] == "websocket.connect"
        headers = scope["headers"]
        try:
            subprotocol = negotiate(offered_subprotocols(headers))
            if self._draining:
                raise DrainingError("The server is shutting down.")
        except StreamgenError as error:
            await refuse_socket(error, scope, receive, send)
            return
        session = Session(
            receive,
            send,
            Protocol(
                secrets.token_urlsafe(18),
                max_requests=self._limits.max_requests,
                max_body_bytes=self._state.config.max_body_bytes,
            ),
            self._backend,
            self._store,
            workers=self._state.workers,
            authenticate=lambda: check_key(headers, self._state.keys),
            correlation_id=of(scope).request_id,
            replay_bytes=self._state.config.stream_buffer_bytes,
            on_end=self._log,
        )
        self._sessions.add(session)
        self._empty.clear()
        try:
            await send({"type": "websocket.accept", "subprotocol": subprotocol, "headers": []})
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

    def _log(self, relay: Relay) -> None:
        if self._state.config.disable_access_log:
            return
        access_log.info(
            "request",
            request_id=relay.correlation_id,
            method="WEBSOCKET",
            path="/v1/ws",
            kind=relay.kind.value,
            prompt_tokens=relay.usage.prompt_tokens,
            completion_tokens=relay.usage.completion_tokens,
            finish_reason=relay.outcome,
            **({"tenant": relay.tenant} if relay.tenant else {}),
        )


class SharedBackend:
    """The Backend that serves bodies as they are served over HTTP."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def start(self, kind: Kind, body: bytes, *, tenant: str, correlation_id: str) -> ChunkStream:
        _, generation = await start_chunks(self._state, kind, body, tenant=tenant, correlation_id=correlation_id)
        return generation


def _call_later(delay: float, run: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(delay, run)
