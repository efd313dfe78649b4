"""Start-up and shut-down of a server process.

The app answers on sockets that are bound already, while the model is loaded on a thread of its own; then it serves.
SIGTERM and Ctrl-C drain: no new work, what runs finishes within the grace time, sockets are closed, the exit status
is 0. A second signal ends the process where it stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Protocol, TypeAlias, TypeVar

import structlog
import uvicorn

from streamgen.config import ServerConfig
from streamgen.engine.client import EngineClient
from streamgen.errors import EngineDeadError, StreamgenError
from streamgen.server.app import App
from streamgen.server.listen import BACKLOG
from streamgen.server.serving import ServingModel

SETTLE_POLL_SECONDS = 0.05
"""How often a draining server looks whether its last response has ended."""
DEATH_POLL_SECONDS = 0.25
"""How often a running server looks whether its engine lives."""
LAST_FRAMES_SECONDS = 2.0
"""What streams that are cut off get to send their last frames."""

log = structlog.get_logger("streamgen.launch")
T = TypeVar("T")


class Engine(EngineClient, Protocol):
    """What must be stopped again."""

    async def shutdown(self) -> None:
        """Fail what still runs, stop stepping, give the device back. Idempotent."""

    @property
    def dead(self) -> str | None:
        """Why the engine cannot go on; None while it can."""


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
    ) -> None:
        self._app = app
        self._sockets = list(sockets)
        self._load = load
        self._config = config
        self._when_ready = when_ready
        self._stop = asyncio.Event()
        self._signalled = False
        self._loop = asyncio.get_running_loop()
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
            await asyncio.wait({serving, stopping, loading}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loaded = self._attach(loading)
                engine = loaded.engine
                watching = asyncio.create_task(_death_of(engine))
                await asyncio.wait({serving, stopping, watching}, return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    self._app.server.fail(watching.result())
                    raise EngineDeadError(watching.result())
                watching.cancel()
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

    def _attach(self, loading: asyncio.Future[Loaded]) -> Loaded:
        try:
            loaded = loading.result()
        except StreamgenError as error:
            self._app.server.fail(error.message)
            raise
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
        log.info("draining", seconds=grace, responses=len(self._server.server_state.tasks))
        await asyncio.gather(self._app.drain(grace), self._settle(grace))

    async def _settle(self, seconds: float) -> None:
        """Wait until no response is being sent, at most so long."""
        deadline = self._loop.time() + seconds
        while self._server.server_state.tasks and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(SETTLE_POLL_SECONDS)  # uvicorn has no event for this

    def _signal(self, number: int) -> None:
        if self._signalled:
            os._exit(128 + number)
        self._signalled = True
        # The handler runs between any two bytecodes, and perhaps while the loop sleeps.
        self._loop.call_soon_threadsafe(self._stop.set)


async def in_thread(work: Callable[[], T], name: str) -> T:
    """Run `work` on a thread that does not keep the process from ending, unlike an executor's."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # of the type that `work` returns

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except BaseException as raised:  # noqa: BLE001  handed to whoever waits
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is gone, and nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done


async def _death_of(engine: Engine) -> str:
    while (why := engine.dead) is None:  # noqa: ASYNC110  a death is rare, and known by a flag
        await asyncio.sleep(DEATH_POLL_SECONDS)
    return why


def _uvicorn_config(app: App, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=config.max_body_bytes,
        # Frames are small and many: compressing them costs more than it saves.
        ws_per_message_deflate=False,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=1,
    )
