"""GET /v1/streams/{id}: go on with a stream that was asked for with `include_event_ids`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from streamgen.errors import InvalidRequestError
from streamgen.server.exchange import of
from streamgen.server.sse import send_kept_events
from streamgen.server.state import ServerState


class ResumeEndpoint:
    """An ASGI app. The header Last-Event-ID says what the client has; without it, all events are sent again."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = self._state
        stream_id = scope["path_params"]["stream"]
        after = _last_event_id(Request(scope).headers.get("last-event-id", ""))
        stream = state.streams.resume(stream_id, of(scope).tenant, after)
        reader = stream.attach(after)
        try:
            await send_kept_events(stream, reader, receive, send, keep_alive=state.config.sse_keep_alive_interval)
        finally:
            state.streams.leave(stream_id, stream, reader)


def _last_event_id(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise InvalidRequestError("Last-Event-ID must be a number.", "Last-Event-ID")
    return int(text)
