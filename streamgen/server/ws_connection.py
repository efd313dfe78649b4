"""The bytes of a WebSocket: uvicorn's protocol, with handshakes that always get an answer, in OpenAI's shape, and with
text that is no text taken for the client's fault.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Response
from websockets.server import ServerProtocol

from streamgen.errors import (
    HeadTooLargeError,
    InvalidRequestError,
    MethodNotAllowedError,
    PermissionDeniedError,
    StreamgenError,
)
from streamgen.server.chunks import dump_json
from streamgen.server.error_responses import unforeseen

HELD = "streamgen.held_bytes"
"""Name of the app's HeldBytes in the lifespan's state, by which connections get at them."""
_INVALID_UTF8 = 1007


class WebSocketConnection(WebSocketsSansIOProtocol):
    """One connection, from the head of its handshake on, which comes whole. Owned by the event loop."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _Handshake(
            extensions=self.conn.available_extensions, max_size=self.config.ws_max_size, logger=self.conn.logger
        )
        self._message = bytearray()
        """The fragments of a message so far."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated:
            # The head is none of a handshake. websockets may have said so, which uvicorn does not look for.
            answer = b"".join(self.conn.data_to_send())
            self.transport.write(answer or self.conn.reject(HTTPStatus.BAD_REQUEST, "No handshake.").serialize())
            self.transport.close()

    def handle_cont(self, event: Frame) -> None:
        # One buffer: a list of fragments of a byte or none would take many times the memory of the message.
        if self.frames:
            self._message = bytearray(self.frames.pop())
        self._message += event.data
        if event.fin:
            self.frames = [bytes(self._message)]
            self._message = bytearray()
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not self.close_sent and not _is_text(self.frames[0]):
            self.frames = []
            self.conn.send_close(_INVALID_UTF8)
            self.handle_parser_exception()
            return
        super().send_receive_event_to_app()


class _Handshake(ServerProtocol):
    def reject(self, status: HTTPStatus | int, text: str) -> Response:
        response = super().reject(status, text)
        reason = text.strip().removeprefix("Failed to open a WebSocket connection: ").removesuffix(".")
        response.body = dump_json(_error(response.status_code, reason).body())
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(response.body))}.items():
            del response.headers[name]
            response.headers[name] = value
        return response


def _error(status: int, reason: str) -> StreamgenError:
    message = f"The WebSocket was refused: {reason}." if reason else "The WebSocket was refused."
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return unforeseen()
    for kind in (PermissionDeniedError, MethodNotAllowedError, HeadTooLargeError):
        if kind.status == status:
            return kind(message)
    return InvalidRequestError(message)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
