"""One HTTP request or WebSocket, from its first byte to its log line: id, tenant, status, sizes."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamgen.observability.http_metrics import HANDLERS, METHODS

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
MAX_LOGGED_PATH = 256
CLIENT_GONE = 499
"""nginx's status for a client that left before its answer; it never goes over the wire."""

log = structlog.get_logger("streamgen.access")


class HttpMetrics(Protocol):
    """What is counted of HTTP. All labels are from closed sets."""

    def http_request(
        self, *, handler: str, method: str, status: int, seconds: float, request_bytes: int, response_bytes: int
    ) -> None: ...


@dataclass(slots=True)
class Exchange:
    """Reached through `of(scope)`. Owned by the task that serves the request."""

    request_id: str
    """For correlation only: the client's own if it is harmless, else made here."""
    started: float
    tenant: str = ""
    status: int = 0
    """Of the response that has begun; 0 before."""
    request_bytes: int = 0
    response_bytes: int = 0
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None


def of(scope: Scope) -> Exchange:
    exchange: Exchange = scope["streamgen"]
    return exchange


def handler_label(path: str) -> str:
    """The path if it is one of the server's own, else a word for its kind."""
    if path in HANDLERS:
        return path
    if path.startswith("/v1/models/"):
        return "/v1/models/{id}"
    if path.startswith("/v1/streams/"):
        return "/v1/streams/{id}"
    return "/static" if path.startswith("/static/") else "other"


def method_label(method: str) -> str:
    return method if method in METHODS else "other"


def request_id(headers: list[tuple[bytes, bytes]]) -> str:
    """The client's X-Request-Id if it can go back into a header and a log as it is, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode("ascii")
    return uuid.uuid4().hex


def printable(text: str, limit: int) -> str:
    """`text`, cut, with whatever could move a terminal's cursor or begin a log line escaped."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


class Exchanges:
    """The outermost middleware. Gives every request its Exchange, and counts and logs it when it is over.

    Also settles what a path is: the prefix under which a proxy mounts the server is taken off here, once, so that
    all that follows (keys, routes, labels) looks at the same string.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        owner: Any,
        root_path: str,
        metrics: HttpMetrics | None,
        clock: Callable[[], float] = time.monotonic,
        access_log: bool,
    ) -> None:
        self._app = app
        self._owner = owner
        self._root_path = "/" + root_path.strip("/") if root_path.strip("/") else ""
        self._metrics = metrics
        self._clock = clock
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        exchange = Exchange(request_id(scope["headers"]), self._clock())
        path = _below(_below(scope["path"], scope.get("root_path", "")), self._root_path)
        scope.update({"streamgen": exchange, "app": self._owner, "path": path, "root_path": ""})
        scope.setdefault("state", {})["request_id"] = exchange.request_id
        if scope["type"] == "websocket":
            await self._app(scope, receive, self._observing_handshake(exchange, path, send))
            return

        # No coroutine of its own: every chunk of every stream comes through here.
        def observed_send(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.body":
                exchange.response_bytes += len(message.get("body", b""))
            elif message["type"] == "http.response.start":
                exchange.status = message["status"]
                headers = message.setdefault("headers", [])
                message["headers"] = [
                    *headers,
                    (b"x-request-id", exchange.request_id.encode("ascii")),
                    (b"x-content-type-options", b"nosniff"),
                ]
            return send(message)

        try:
            await self._app(scope, receive, observed_send)
        finally:
            self._over(exchange, scope["method"], path)

    def _observing_handshake(self, exchange: Exchange, path: str, send: Send) -> Send:
        """A WebSocket counts as its handshake: how long it then stays open is not the time of an answer."""

        def observed_send(message: Message) -> Awaitable[None]:
            if not exchange.status:
                accepted = message["type"] == "websocket.accept"
                exchange.status = 101 if accepted else message.get("status", 403)
                self._over(exchange, "GET", path)
            return send(message)

        return observed_send

    def _over(self, exchange: Exchange, method: str, path: str) -> None:
        seconds = self._clock() - exchange.started
        status = exchange.status or CLIENT_GONE
        if self._metrics is not None:
            self._metrics.http_request(
                handler=handler_label(path),
                method=method_label(method),
                status=status,
                seconds=seconds,
                request_bytes=exchange.request_bytes,
                response_bytes=exchange.response_bytes,
            )
        if not self._access_log:
            return
        details = {
            "model": exchange.model,
            "prompt_tokens": exchange.prompt_tokens,
            "completion_tokens": exchange.completion_tokens,
            "finish_reason": exchange.finish_reason,
            "tenant": exchange.tenant or None,
        }
        log.info(
            "request",
            request_id=exchange.request_id,
            method=method_label(method),
            path=printable(path, MAX_LOGGED_PATH),
            status=status,
            ms=round(seconds * 1e3, 3),
            bytes_in=exchange.request_bytes,
            bytes_out=exchange.response_bytes,
            **{name: value for name, value in details.items() if value is not None},
        )


def _below(path: str, root: str) -> str:
    if root and (path == root or path.startswith(root + "/")):
        return path[len(root) :] or "/"
    return path
