"""The bytes of a WebSocket: uvicorn's protocol, with handshakes that always get an answer, in OpenAI's shape, and with
text that is no text taken for the client's fault.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent, WebSocketReceiveEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Response
from websockets.protocol import Event, State
from websockets.server import ServerProtocol

from streamgen.errors import (
    HeadTooLargeError,
    InvalidRequestError,
    MethodNotAllowedError,
    PermissionDeniedError,
    QueueFullError,
    StreamgenError,
)
from streamgen.server.chunks import dump_json
from streamgen.server.error_responses import unforeseen
from streamgen.server.held_bytes import HeldBytes
from streamgen.server.ws_protocol import CloseCode
from streamgen.server.ws_rate import FrameRate

PIECE_BYTES = 4096
"""So much is parsed before the frames in it are counted."""
HELD = "streamgen.held_bytes"
"""Name of the app's HeldBytes in the lifespan's state, by which connections get at them."""
_INVALID_UTF8 = 1007


class WebSocketConnection(WebSocketsSansIOProtocol):
    """One connection, from the head of its handshake on, which comes whole. Owned by the event loop.

    What a client can make it hold or do is bounded: a message in bytes, and those of all connections together; frames
    in number, for the time that they take; pongs to a client that does not read them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn: _Connection = _Connection(
            extensions=self.conn.available_extensions, max_size=self.config.ws_max_size, logger=self.conn.logger
        )
        self._message = bytearray()
        """The fragments of a message so far."""
        self._queued = 0
        """Bytes of messages that are whole, and that the application has not taken yet."""
        held: HeldBytes = self.app_state.get(HELD) or HeldBytes()
        self._hold = held.open()
        self._rate = FrameRate(self.loop.time())
        self._pong = b""
        """The newest pong that could not be written yet."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._hold.release()

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated:
            self._shake_hands(data)
            return
        # By pieces, for a read holds tens of thousands of the smallest frames.
        for at in range(0, len(data), PIECE_BYTES):
            super().data_received(data[at : at + PIECE_BYTES])
            if self.transport.is_closing():
                return
            if not self._rate.allows(self.conn.take_num_frames(), self.loop.time()):
                self._cut_off(CloseCode.POLICY, "Too many frames a second.")
                return
        self._count()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._pong:
            self.transport.write(self._pong)
            self._pong = b""

    def handle_ping(self) -> None:
        pongs = self.conn.data_to_send()
        if self.writable.is_set():
            self.transport.write(b"".join(pongs))
        elif pongs:
            # RFC 6455, section 5.5.3: the pong to the most recent ping will do.
            self._pong = pongs[-1]

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
        (data,) = self.frames
        self.frames = []
        if self.close_sent:
            # Reading goes on until the peer answers the close frame.
            return
        if self.curr_msg_data_type == "text":
            try:
                message: WebSocketReceiveEvent = {"type": "websocket.receive", "text": data.decode()}
            except UnicodeDecodeError:
                self.conn.send_close(_INVALID_UTF8)
                self.handle_parser_exception()
                return
        else:
            message = {"type": "websocket.receive", "bytes": data}
        self._queued += _size(message)
        self.queue.put_nowait(message)
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    async def receive(self) -> ASGIReceiveEvent:
        message = await super().receive()
        if message["type"] == "websocket.receive":
            self._queued -= _size(message)
            self._count()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        await self.writable.wait()
        if self.close_sent and self.handshake_complete:
            # For its own reasons, of which the application learns when it next receives: its fault is it not.
            raise ClientDisconnected
        await super().send(message)

    def _shake_hands(self, data: bytes) -> None:
        super().data_received(data)
        self.conn.take_num_frames()
        if not self.handshake_initiated:
            # The head is none of a handshake. websockets may have said so, which uvicorn does not look for.
            answer = b"".join(self.conn.data_to_send())
            self.transport.write(answer or self.conn.reject(HTTPStatus.BAD_REQUEST, "No handshake.").serialize())
            self.transport.close()

    def _count(self) -> None:
        if self.disconnected:
            return
        unfinished = len(self.conn.reader.buffer) + len(self._message) + sum(map(len, self.frames))
        try:
            self._hold.resize(unfinished + self._queued)
        except QueueFullError as error:
            self._cut_off(CloseCode.TRY_AGAIN_LATER, error.message)

    def _cut_off(self, code: int, reason: str) -> None:
        if self.conn.state is State.OPEN:
            self.conn.send_close(code, reason)
            self.handle_parser_exception()
        else:
            self.transport.close()


class _Connection(ServerProtocol):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._num_frames = 0

    def events_received(self) -> list[Event]:
        events = super().events_received()
        self._num_frames += len(events)
        return events

    def take_num_frames(self) -> int:
        """Frames that have come since the last call."""
        number, self._num_frames = self._num_frames, 0
        return number

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


def _size(message: WebSocketReceiveEvent) -> int:
    return len(message.get("text") or message.get("bytes") or b"")
