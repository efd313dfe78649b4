"""Start-up and shut-down of a server process.

The app answers on sockets that are bound already, while the model is loaded on a thread of its own; then it serves.
SIGTERM and Ctrl-C drain: no new work, what runs finishes within the grace time, sockets are closed, the exit status
is 0. A second signal ends the process where it stands.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol, TypeAlias

import structlog
import uvicorn

from streamgen.config import ServerConfig
from streamgen.engine.client import EngineClient
from streamgen.errors import EngineDeadError, StreamgenError
from streamgen.observability.logging import flush_logging
from streamgen.server.app import App
from streamgen.server.http_protocol import HttpProtocol
from streamgen.server.listen import BACKLOG
from streamgen.server.serving import ServingModel
from streamgen.server.ws_connection import WebSocketConnection
from streamgen.server.ws_protocol import ENVELOPE_BYTES

SETTLE_POLL_SECONDS = 0.05
"""How often a draining server looks whether its last response has ended."""
LAST_FRAMES_SECONDS = 2.0
"""What streams that are cut off get to send their last frames."""

log = structlog.get_logger("streamgen.launch")


class Engine(EngineClient, Protocol):
    """What must be stopped again."""

    on_death: Callable[[str], None] | None
    """Called once, with the reason, if the engine cannot go on."""

    async def shutdown(self) -> None:
        """Fail what still runs, stop stepping, give the device back."""


@dataclass(frozen=True)
class Loaded:
    engine: Engine
    serving: ServingModel


Load: TypeAlias = Callable[[], Awaitable[Loaded]]


class Server(uvicorn.Server):
    """uvicorn's server, with signals going to whoever runs it."""

    def __init__(self, config: uvicorn.Config, on_signal: Callable[[int], None]) -> None:
        super().__init__(config)
        self._on_signal = on_signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del frame
        self._on_signal(sig)


class Launch:
    """One run of a server. `run` may be called once."""

    def __init__(
        self,
        app: App,
        sockets: Sequence[socket.socket],
        load: Load,
        config: ServerConfig,
        *,
        when_ready: Callable[[ServingModel], None] = lambda _serving: None,
        when_draining: Callable[[int, float], None] = lambda _responses, _seconds: None,
    ) -> None:
        """Args: `when_draining` is told how many responses are still being sent, and the seconds that they get."""
        self._app = app
        self._sockets = list(sockets)
        self._load = load
        self._config = config
        self._when_ready = when_ready
        self._when_draining = when_draining
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._death: asyncio.Future[str] = self._loop.create_future()
        self._signalled = False
        self._server = Server(_uvicorn_config(app, config), self._signal)

    def stop(self) -> None:
        """Begin to drain. From the event loop's thread."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until a signal or `stop`. Raises what kept the model from loading, and EngineDeadError."""
        serving = asyncio.create_task(self._server.serve(sockets=self._sockets))
        stopping = asyncio.create_task(self._stop.wait())
        loading = asyncio.ensure_future(self._load())
        engine: Engine | None = None
        try:
            await _first(serving, stopping, loading)
            if loading.done():
                loaded = self._attach(loading)
                engine = loaded.engine
                await _first(serving, stopping, self._death)
                if self._death.done():
                    self._app.server.fail("The engine failed and cannot go on.")
                    raise EngineDeadError(f"The engine failed and cannot go on: {self._death.result()}")
            if stopping.done():
                await self._drain(engine)
        finally:
            for task in (stopping, loading):
                task.cancel()
            if engine is not None:
                await engine.shutdown()
                await self._settle(LAST_FRAMES_SECONDS)
            self._server.should_exit = True
            await serving
            # Whoever started the server may have to end the process by force, because of a thread that hangs.
            flush_logging()

    def _attach(self, loading: asyncio.Future[Loaded]) -> Loaded:
        try:
            loaded = loading.result()
        except StreamgenError as error:
            self._app.server.fail(error.message)
            raise
        loaded.engine.on_death = self._died
        self._app.server.attach(loaded.engine, loaded.serving)
        # What exists by now lives as long as the process; the collector need not look at it again.
        gc.collect()
        gc.freeze()
        self._when_ready(loaded.serving)
        return loaded

    async def _drain(self, engine: Engine | None) -> None:
        """Refuse new work, and wait for the old as long as it may take."""
        self._app.server.draining = True
        grace = self._config.shutdown_timeout if engine is not None else 0.0
        responses = len(self._server.server_state.tasks)
        log.info("draining", seconds=grace, responses=responses)
        self._when_draining(responses, grace)
        for connection in list(self._server.server_state.connections):
            if isinstance(connection, HttpProtocol):
                connection.drain()
        await asyncio.gather(self._app.drain(grace), self._settle(grace))

    async def _settle(self, seconds: float) -> None:
        """Wait until no response is being sent, at most so long."""
        deadline = self._loop.time() + seconds
        while self._server.server_state.tasks and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(SETTLE_POLL_SECONDS)  # uvicorn has no event for this

    def _died(self, why: str) -> None:
        if not self._death.done():
            self._death.set_result(why)

    def _signal(self, number: int) -> None:
        if self._signalled:
            os._exit(128 + number)
        self._signalled = True
        # The handler runs between any two bytecodes, and perhaps while the loop sleeps.
        self._loop.call_soon_threadsafe(self._stop.set)


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _uvicorn_config(app: App, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=HttpProtocol,
        ws=WebSocketConnection,
        ws_max_size=config.max_body_bytes + ENVELOPE_BYTES,
        # Frames are small and many: compressing them costs more than it saves.
        ws_per_message_deflate=False,
        lifespan="on",
        log_config=None,
        access_log=False,
        log_level="info" if config.log_level == "debug" else "warning",
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=1,
    )
