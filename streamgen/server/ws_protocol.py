"""The WebSocket protocol `streamgen.v1` as a pure object: messages in, events out; and the frames that go back.

One `Protocol` serves one socket. It knows which requests are open on it and nothing of how they are served:

    message ──► decode_frame() ──► Protocol.take() ──► Create | Cancel | Resume | Reply | Close
    chunk   ──► RequestFrames.chunk() ──► text of the frame

The body of a request stays undecoded JSON (`Create.body`): its meaning is that of the same body sent over HTTP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import orjson

from streamgen.errors import InvalidRequestError, NotFoundError, QueueFullError, RequestError, StreamgenError
from streamgen.server.json_body import body_too_large
from streamgen.server.kind import Kind
from streamgen.server.usage import usage_json
from streamgen.types import Usage

SUBPROTOCOL = "streamgen.v1"
PROTOCOL_VERSION = 1

MAX_ID_CHARS = 128
ENVELOPE_BYTES = 2048
"""What a message may have beyond its body."""
MAX_BAD_FRAMES = 16
"""Frames in a row that mean nothing, after which the socket is closed: the peer speaks something else."""
MAX_REASON_BYTES = 123
"""RFC 6455, section 5.5: a control frame holds 125 bytes, two of which are the code."""
_REMEMBERED = 256


class CloseCode:
    """RFC 6455, section 7.4.1, and its registry: the codes with which this server closes a socket."""

    NORMAL = 1000
    GOING_AWAY = 1001
    POLICY = 1008
    TOO_BIG = 1009
    INTERNAL = 1011
    TRY_AGAIN_LATER = 1013


@dataclass(frozen=True, slots=True)
class Create:
    """Begin a request. `id` is open from now on, until `Protocol.end(id)`."""

    id: str
    kind: Kind
    body: bytes
    """JSON object, as it came."""
    resumable: bool


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a request that is open."""

    id: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a request of an earlier socket, behind its frame `after`. `id` is open from now on."""

    id: str
    kind: Kind
    session: str
    after: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Send this frame, and go on."""

    frame: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close the socket."""

    code: int
    reason: str


Event: TypeAlias = Create | Cancel | Resume | Reply | Close | None


class _Envelope(msgspec.Struct):
    """What any client frame may hold. The body is only sliced out: it is decoded once, by whoever serves it."""

    type: str
    id: str | None = None
    body: msgspec.Raw = msgspec.Raw()
    resumable: bool | None = None
    session: str | None = None
    after: int | None = None


Frame: TypeAlias = _Envelope | RequestError | Close
"""A message of the client's: its envelope, or the error that it is answered with."""

_ENVELOPES = msgspec.json.Decoder(_Envelope)
_KINDS = frozenset(kind.value for kind in Kind)
_PONG = '{"type":"pong"}'


class Protocol:
    """The server's end of one socket. Pure: owned by the one coroutine that reads the socket."""

    def __init__(self, session: str, *, max_requests: int, max_body_bytes: int) -> None:
        self.session = session
        self._max_requests = max_requests
        self._max_body_bytes = max_body_bytes
        self.max_message_bytes = max_body_bytes + ENVELOPE_BYTES
        self._open: dict[str, Kind] = {}
        self._ended: deque[str] = deque(maxlen=_REMEMBERED)
        self._bad = 0

    @property
    def open_ids(self) -> tuple[str, ...]:
        return tuple(self._open)

    def greeting(self) -> str:
        """The first frame of the server."""
        return _text({"type": "session.created", "session": self.session, "protocol": PROTOCOL_VERSION})

    def end(self, request_id: str) -> None:
        """The request's last frame was sent, or another socket reads it now: its id may be used again."""
        if self._open.pop(request_id, None) is not None:
            self._ended.append(request_id)

    def receive(self, message: str | bytes) -> Event:
        """Take one message of the client. Never raises: whatever is wrong with it becomes a Reply or a Close."""
        return self.take(decode_frame(message, self.max_message_bytes))

    def take(self, frame: Frame) -> Event:
        """The same, for a message that has been decoded."""
        if isinstance(frame, Close):
            return frame
        if isinstance(frame, RequestError):
            return self._bad_frame(frame)
        event = self._event(frame)
        if not isinstance(event, Reply) or event.frame == _PONG:
            self._bad = 0
        return event

    def _event(self, envelope: _Envelope) -> Event:
        match envelope.type:
            case "ping":
                return Reply(_PONG)
            case "pong":
                return None
        prefix, _, verb = envelope.type.partition(".")
        if prefix not in _KINDS or verb not in ("create", "cancel", "resume"):
            return self._bad_frame(InvalidRequestError(f"Unknown frame type {envelope.type[:64]!r}.", "type"))
        kind = Kind(prefix)
        request_id = envelope.id
        if request_id is None or not 0 < len(request_id) <= MAX_ID_CHARS:
            message = f"{envelope.type} needs an id: a string of 1 to {MAX_ID_CHARS} characters."
            return self._bad_frame(InvalidRequestError(message, "id"), kind)
        match verb:
            case "create":
                return self._create(request_id, kind, envelope)
            case "resume":
                return self._resume(request_id, kind, envelope)
        return self._cancel(request_id, kind)

    def _create(self, request_id: str, kind: Kind, envelope: _Envelope) -> Event:
        body = bytes(envelope.body)
        if not body.startswith(b"{"):
            return Reply(RequestFrames(kind, request_id).error(InvalidRequestError("body must be an object.", "body")))
        if len(body) > self._max_body_bytes:
            return Reply(RequestFrames(kind, request_id).error(body_too_large(self._max_body_bytes)))
        return self._opened(request_id, kind) or Create(request_id, kind, body, bool(envelope.resumable))

    def _resume(self, request_id: str, kind: Kind, envelope: _Envelope) -> Event:
        if not envelope.session or envelope.after is None or envelope.after < 0:
            error = InvalidRequestError("A resume needs the session that created it, and after, a number from 0 on.")
            return Reply(RequestFrames(kind, request_id).error(error))
        return self._opened(request_id, kind) or Resume(request_id, kind, envelope.session, envelope.after)

    def _cancel(self, request_id: str, kind: Kind) -> Event:
        if request_id in self._open:
            return Cancel(request_id)
        if request_id in self._ended:
            # It ended while the cancel was under way, which is nobody's mistake.
            return None
        return Reply(
            RequestFrames(kind, request_id).error(
                NotFoundError(f"No request {request_id!r} is open on this socket.", "id")
            )
        )

    def _opened(self, request_id: str, kind: Kind) -> Reply | None:
        """Open the id, or say why not."""
        if request_id in self._open:
            # The id stays out of the answer's `id`: there it would look as if the first request had failed.
            return self._refusal(InvalidRequestError(f"The id {request_id!r} is in use on this socket.", "id"), kind)
        if len(self._open) >= self._max_requests:
            error = QueueFullError(f"At most {self._max_requests} requests may be open on one socket.")
            return Reply(RequestFrames(kind, request_id).error(error))
        self._open[request_id] = kind
        return None

    def _refusal(self, error: StreamgenError, kind: Kind = Kind.CHAT) -> Reply:
        return Reply(_text({"type": f"{kind}.error", "id": None, **error.body()}))

    def _bad_frame(self, error: StreamgenError, kind: Kind = Kind.CHAT) -> Reply | Close:
        self._bad += 1
        if self._bad > MAX_BAD_FRAMES:
            return Close(CloseCode.POLICY, f"Too many frames in a row that are no messages of {SUBPROTOCOL}.")
        return self._refusal(error, kind)


def decode_frame(message: str | bytes, max_bytes: int) -> Frame:
    """One message of the client, or what is wrong with it. Knows nothing of the socket: it may run beside the loop."""
    if isinstance(message, bytes):
        return InvalidRequestError("Frames must be text; this one was binary.")
    try:
        data = message.encode()
        if len(data) > max_bytes:
            return Close(CloseCode.TOO_BIG, f"A message may have at most {max_bytes} bytes.")
        return _ENVELOPES.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return InvalidRequestError(f"The frame is not a message of {SUBPROTOCOL}: {error}.")


class RequestFrames:
    """Renders the frames of one request. A chunk comes as JSON already and is spliced in, never parsed again."""

    __slots__ = ("_chunk", "_id", "_kind")

    def __init__(self, kind: Kind, request_id: str) -> None:
        self._kind = kind
        self._id = request_id
        self._chunk = f'{{"type":"{kind}.chunk","id":{orjson.dumps(request_id).decode()},"seq":'

    def chunk(self, seq: int, chunk: bytes) -> str:
        """`chunk` is the JSON of a chunk object. `seq` counts from 1 over all frames of the request."""
        return f'{self._chunk}{seq},"chunk":{chunk.decode()}}}'

    def done(self, seq: int, finish_reason: str, usage: Usage) -> str:
        return _text(
            {
                "type": f"{self._kind}.done",
                "id": self._id,
                "seq": seq,
                "finish_reason": finish_reason,
                "usage": usage_json(usage),
            }
        )

    def error(self, error: StreamgenError) -> str:
        return _text({"type": f"{self._kind}.error", "id": self._id, **error.body()})


def negotiate(offered: Sequence[str]) -> str:
    """The sub-protocol to speak, out of those that a client offers. Raises InvalidRequestError."""
    if SUBPROTOCOL not in offered:
        raise InvalidRequestError(f"Offer the WebSocket sub-protocol {SUBPROTOCOL!r} (Sec-WebSocket-Protocol).")
    return SUBPROTOCOL


def clip_reason(reason: str) -> str:
    """A close reason that fits its frame, cut between characters."""
    return reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")


def _text(frame: dict[str, Any]) -> str:
    return orjson.dumps(frame).decode()
