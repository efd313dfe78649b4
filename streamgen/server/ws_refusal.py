"""Refusing a WebSocket before it is accepted, with an HTTP answer that says why."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.types import Receive, Scope, Send

from streamgen.errors import AuthenticationError, StreamgenError
from streamgen.server.chunks import dump_json

GONE_WITHIN = 1.0
"""Seconds that the connection of a refused client gets to close."""


async def refuse_socket(error: StreamgenError, scope: Scope, receive: Receive, send: Send) -> None:
    """To be called when `websocket.connect` has been received. Status 403 also for a missing key, as everywhere."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": error.ws_code, "reason": ""})
        return
    status = 403 if isinstance(error, AuthenticationError) else error.status
    headers = {"content-type": "application/json", **error.headers()}
    await send(
        {
            "type": "websocket.http.response.start",
            "status": status,
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        }
    )
    await send({"type": "websocket.http.response.body", "body": dump_json(error.body())})
    # uvicorn takes such a handshake for complete only once the connection is closed, and logs an error for whoever
    # returns before. It announces the end twice: when the answer is written, and when the connection is gone.
    with suppress(TimeoutError):
        async with asyncio.timeout(GONE_WITHIN):
            await receive()
            await receive()
