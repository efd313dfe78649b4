"""The bytes of server-sent events. Pure."""

from __future__ import annotations

from streamgen.errors import StreamgenError
from streamgen.server.chunks import dump_json

HEAD = b"data: "
TAIL = b"\n\n"
DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": keep-alive\n\n"
"""A comment, which readers of server-sent events skip."""

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would collect the events otherwise.
    (b"x-accel-buffering", b"no"),
]


def error_event(error: StreamgenError) -> bytes:
    return HEAD + dump_json(error.body()) + TAIL
