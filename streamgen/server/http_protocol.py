"""The bytes of a connection as HTTP requests: uvicorn's protocol, with bounds on what a client may send around a body,
and with its refusals in OpenAI's shape.

What it does otherwise than its base:

- Bytes that are no HTTP get an error object instead of plain text.
- A head, or whatever else brings no part of a body, is bounded in bytes, and a head also in time.
- When the connection goes, the request that is being answered learns of it, not the last one that was pipelined behind
  it; and a few pipelined ones do not keep the loop from seeing that the connection went.
- An upgrade to anything but a WebSocket is declined and the request served as it stands, body and all. HTTP/2 clients,
  Java's among them, ask for one with their first request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from streamgen.errors import DrainingError, HeadTooLargeError, InvalidRequestError, RequestTimeoutError, StreamgenError
from streamgen.server.chunks import dump_json

MAX_HEAD_BYTES = 64 * 1024
"""Most bytes in a row that are neither a whole head nor part of a body. Checked after each read, so that what is in one
read with the end of the head does not count."""
HEAD_SECONDS = 60.0
"""Time for a head, from its first byte or from the beginning of the connection."""
MAX_PIPELINED = 16
MAX_PIPELINED_BYTES = 64 * 1024
"""Requests, and bytes of their bodies, that may wait behind the one that is answered, before reading stops."""
_ASKING = frozenset({b"upgrade", b"http2-settings"})


class HttpProtocol(HttpToolsProtocol):
    """One connection. Owned by the event loop."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answered: RequestResponseCycle | None = None
        """The request that is being answered; `cycle` is the last one that was read."""
        self._in_head = False
        self._progress = False
        """Whether this read has brought a whole head or part of a body."""
        self._barren = 0
        """Bytes since the last progress."""
        self._declined: list[bytes] | None = None
        """The head of a request whose upgrade is declined, without the fields that ask for it."""
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self._has_room)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._unset_keepalive_if_required()
        self._tell_answered()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._progress = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._declined is not None:
                self._go_on(data[upgrade.args[0] :])
            elif self._should_upgrade():
                self._upgrade()
            return
        except httptools.HttpParserError:
            self._refuse(InvalidRequestError("The request is not valid HTTP/1.1."))
            return
        if self._progress:
            self._barren = 0
            return
        self._barren += len(data)
        if self._barren > MAX_HEAD_BYTES:
            self._refuse(HeadTooLargeError(f"The request's head has more than {MAX_HEAD_BYTES} bytes."))
        elif self._in_head and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def drain(self) -> None:
        """The server shuts down: close, if the next request has not come as far as the end of its head."""
        idle = self._answered is None or self._answered.response_complete
        if idle and (self._in_head or self._barren):
            self._refuse(DrainingError("The server is shutting down."))

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Fields behind a chunked body are not those that keys and origin were checked by.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._progress = True
        self._stop_head_timer()
        method = self.parser.get_method()
        if self.parser.should_upgrade() and method != b"CONNECT" and not self._should_upgrade():
            self._declined = _without_upgrade(method, self.url, self.headers)
            return
        super().on_headers_complete()
        if 0 < len(self.pipeline) <= MAX_PIPELINED:
            # Who does not read does not see a connection go.
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._progress = True
        super().on_body(body)
        if not self._has_room():
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        self._progress = True
        if self._declined is None:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _upgrade(self) -> None:
        if self._answered is not None and not self._answered.response_complete:
            self._refuse(InvalidRequestError("A WebSocket cannot begin before the last request was answered."))
        else:
            # Of no use here, and apt to be longer than a handshake's fields may be: those of a machine's own name are
            # shared by all that it serves.
            self.headers[:] = [field for field in self.headers if field[0] != b"cookie"]
            self.handle_websocket_upgrade()

    def _go_on(self, rest: bytes) -> None:
        """Serve the request whose upgrade is declined (RFC 9110, section 7.8); `rest` is what followed its head."""
        head, self._declined = self._declined, None
        assert head is not None
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.data_received(b"".join(head) + rest)

    def _has_room(self) -> bool:
        return not self.pipeline or sum(len(cycle.body) for cycle, _ in self.pipeline) <= MAX_PIPELINED_BYTES

    def _refuse(self, error: StreamgenError) -> None:
        """Say what is wrong, unless an answer is being sent already, and close."""
        if self.transport.is_closing():
            return
        if self._answered is None or self._answered.response_complete or not self._answered.response_started:
            body = dump_json(error.body())
            fields = [
                *self.server_state.default_headers,
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
                *((name.lower().encode(), value.encode()) for name, value in error.headers().items()),
            ]
            lines = b"".join(b"%b: %b\r\n" % field for field in fields)
            self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[error.status], lines, body))
        self._tell_answered()
        self.transport.close()

    def _tell_answered(self) -> None:
        """Let the request that is being answered know that its client is gone."""
        cycle = self._answered
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            self.flow.resume_writing()

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._barren or self._in_head:
            self._refuse(RequestTimeoutError(f"The request's head did not arrive within {HEAD_SECONDS:g} seconds."))
        else:
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _Flow(FlowControl):
    """Whoever waits for more of the request that is answered lets reading go on, and knows nothing of what has come
    behind it.
    """

    def __init__(self, transport: asyncio.Transport, has_room: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._has_room = has_room

    def resume_reading(self) -> None:
        if self._has_room():
            super().resume_reading()


def _without_upgrade(method: bytes, url: bytes, headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    """The bytes of a head, less what asks for an upgrade."""
    head = [method, b" ", url, b" HTTP/1.1\r\n"]
    for name, value in headers:
        if name == b"connection":
            kept = [token for token in value.split(b",") if token.strip().lower() not in _ASKING]
            head += [name, b": ", b",".join(kept), b"\r\n"]
        elif name not in _ASKING:
            head += [name, b": ", value, b"\r\n"]
    return [*head, b"\r\n"]
