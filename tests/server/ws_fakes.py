"""A backend whose requests say what a test tells them to, and a real socket to reach it by."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn
from websockets.asyncio.client import ClientConnection, connect

from streamgen.errors import InvalidRequestError, StreamgenError
from streamgen.server.kind import Kind
from streamgen.types import Usage


class ScriptedStream:
    """A ChunkStream. Chunks merge while nobody reads them, as the engine's do."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._over = False
        self._error: StreamgenError | None = None
        self.aborted = asyncio.Event()
        self.finish_reason = ""
        self.usage = Usage(3, 0)

    def say(self, *texts: str) -> None:
        for text in texts:
            self._chunks.append(json.dumps({"text": text}).encode())
        self.usage = Usage(3, self.usage.completion_tokens + len(texts))
        self._news.set()

    def finish(self, reason: str = "stop") -> None:
        if not self._over:
            self._over = True
            self.finish_reason = reason
            self._news.set()

    def fail(self, error: StreamgenError) -> None:
        self._error = error
        self._news.set()

    async def close(self) -> None:
        self.abort()

    async def get(self) -> list[bytes]:
        while not self._chunks and not self._over and self._error is None:
            self._news.clear()
            await self._news.wait()
        if not self._chunks and self._error is not None:
            raise self._error
        chunks = list(self._chunks)
        self._chunks.clear()
        return chunks

    def abort(self) -> None:
        self.aborted.set()
        self.finish("abort")


class ScriptedBackend:
    """A Backend. A body's `name` says which stream it gets; `refuse` in it makes it invalid."""

    def __init__(self) -> None:
        self._streams: dict[str, ScriptedStream] = {}
        self.started: dict[str, asyncio.Event] = {}
        self.gate = asyncio.Event()
        """Preparation waits for it."""
        self.gate.set()
        self.tenants: list[str] = []

    def stream(self, name: str) -> ScriptedStream:
        self.started.setdefault(name, asyncio.Event())
        return self._streams.setdefault(name, ScriptedStream())

    async def wait_started(self, name: str) -> ScriptedStream:
        stream = self.stream(name)
        await self.started[name].wait()
        return stream

    async def start(self, kind: Kind, body: bytes, *, tenant: str, correlation_id: str) -> ScriptedStream:
        await self.gate.wait()
        fields = json.loads(body)
        if "refuse" in fields:
            raise InvalidRequestError("refused", "refuse")
        stream = self.stream(fields["name"])
        self.tenants.append(tenant)
        self.started[fields["name"]].set()
        return stream


class FakeTimers:
    """`call_later` whose time passes when the test says so."""

    def __init__(self) -> None:
        self._pending: list[FakeTimer] = []

    def call_later(self, delay: float, run: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(delay, run)
        self._pending.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        for timer in self._pending:
            timer.delay -= seconds
        due = [timer for timer in self._pending if timer.delay <= 0]
        self._pending = [timer for timer in self._pending if timer.delay > 0]
        for timer in due:
            if not timer.cancelled:
                timer.run()


class FakeTimer:
    def __init__(self, delay: float, run: Callable[[], None]) -> None:
        self.delay = delay
        self.run = run
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def key_protocol(key: str) -> str:
    """The sub-protocol that carries `key`."""
    return "streamgen.key." + base64.urlsafe_b64encode(key.encode()).rstrip(b"=").decode()


@contextlib.asynccontextmanager
async def serve(app: Any, **settings: Any) -> AsyncIterator[str]:
    """Serve an ASGI application on a free port; yields host:port."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, log_config=None, log_level="error", lifespan="off", interface="asgi3", ws_ping_interval=None, **settings
    )
    server = uvicorn.Server(config)
    running = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


class Client:
    """A WebSocket client that speaks frames."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.session = ""

    async def send(self, **frame: Any) -> None:
        await self.connection.send(json.dumps(frame))

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            frame: dict[str, Any] = json.loads(await self.connection.recv())
        return frame

    async def closed(self) -> tuple[int, str]:
        """Wait for the server to close; code and reason."""
        async with asyncio.timeout(10):
            await self.connection.wait_closed()
        assert self.connection.close_code is not None
        return self.connection.close_code, self.connection.close_reason or ""


@contextlib.asynccontextmanager
async def client(
    address: str, *, subprotocols: tuple[str, ...] = ("streamgen.v1",), **settings: Any
) -> AsyncIterator[Client]:
    async with connect(
        f"ws://{address}/v1/ws", subprotocols=list(subprotocols), proxy=None, compression=None, **settings
    ) as connection:
        speaker = Client(connection)
        greeting = await speaker.receive()
        assert greeting["type"] == "session.created"
        speaker.session = greeting["session"]
        yield speaker
