"""How `streamgen serve` ends when its engine fails while it drains."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from streamgen.commands import serve as command
from streamgen.config import EngineConfig, ServerConfig
from streamgen.engine.gpu_thread import GpuThread
from streamgen.errors import EngineDeadError
from streamgen.runtime.fake import scripted
from streamgen.server.launch import Loaded
from streamgen.server.listen import listen
from streamgen.types import StepPlan
from tests.engine.world import TOKENIZER, running
from tests.server.world import serving_model


class World:
    """A served engine whose step 2 waits until the test lets it go on, or raise."""

    def __init__(self) -> None:
        self.now = 0.0
        self.error: Exception | None = None
        self._go_on = threading.Event()

    def step(self, plan: StepPlan) -> None:
        if plan.step == 2:
            self._go_on.wait(20)
            if self.error is not None:
                raise self.error

    def clock(self) -> float:
        return self.now

    def go_on(self) -> None:
        self._go_on.set()


@asynccontextmanager
async def served(
    monkeypatch: pytest.MonkeyPatch, world: World, shutdown_timeout: float
) -> AsyncIterator[tuple[asyncio.Task[None], httpx.AsyncClient, AsyncIterator[str]]]:
    """The running command, a client of it, and the lines of a stream that has begun."""
    config = ServerConfig(port=0, shutdown_timeout=shutdown_timeout, disable_access_log=True)
    sockets = listen(config.host, config.port)
    (letter,) = TOKENIZER.encode("a", add_special_tokens=False)
    script = scripted([], then=letter)
    async with running(script, before_step=world.step, clock=world.clock, text=True) as engine:

        async def load(*_: object, **__: object) -> Loaded:
            return Loaded(engine, serving_model())

        monkeypatch.setattr("streamgen.server.loading.load", load)
        serving = asyncio.create_task(command._serve(sockets, "http://here", EngineConfig(), config))
        url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            while (await client.get("/ready")).status_code != 200:
                pass  # each answer takes some of the loop's turns
            body = {"prompt": "Hi", "max_tokens": 20, "stream": True}
            async with client.stream("POST", "/v1/completions", json=body) as response:
                lines = response.aiter_lines()
                assert "data:" in await anext(lines)
                yield serving, client, lines
            world.go_on()
            await asyncio.gather(serving, return_exceptions=True)


async def stop(client: httpx.AsyncClient) -> None:
    signal.raise_signal(signal.SIGTERM)
    while (await client.get("/ready")).status_code == 200:
        pass


async def test_C9_an_engine_that_dies_while_the_server_drains_is_no_clean_exit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    async with served(monkeypatch, world, shutdown_timeout=20) as (serving, client, lines):
        await stop(client)
        world.error = RuntimeError("CUDA error: an illegal memory access was encountered")
        world.go_on()
        text = "\n".join([line async for line in lines])
        assert '"code":"engine_dead"' in text
        assert text.rstrip().endswith("data: [DONE]")
        with pytest.raises(EngineDeadError, match="shut down: RuntimeError: CUDA error: an illegal memory access"):
            await serving


async def test_C9_a_step_that_hangs_while_the_server_drains_is_no_clean_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    close = GpuThread.close
    monkeypatch.setattr(GpuThread, "close", lambda thread: close(thread, timeout=0))
    world = World()
    async with served(monkeypatch, world, shutdown_timeout=0) as (serving, _, lines):
        world.now = 1000.0
        signal.raise_signal(signal.SIGTERM)
        text = "\n".join([line async for line in lines])
        assert '"code":"draining"' in text
        with pytest.raises(EngineDeadError, match="has not come back for 1000 s"):
            await serving


async def test_C9_a_drain_that_finishes_its_streams_is_a_clean_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    async with served(monkeypatch, world, shutdown_timeout=20) as (serving, client, lines):
        await stop(client)
        world.go_on()
        assert '"finish_reason":"length"' in "\n".join([line async for line in lines])
        await serving


def exit_status(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> int:
    """The status that the process ends with when a thread hangs in the device."""

    async def serve(sockets: list[socket.socket], *_: object) -> None:
        for one in sockets:
            one.close()
        if error is not None:
            raise error

    class ExitedError(Exception):
        pass

    def leave(status: int) -> None:
        raise ExitedError(status)

    hung = threading.Event()
    thread = threading.Thread(target=hung.wait, args=(20,), name=command.GPU_THREAD)
    thread.start()
    try:
        monkeypatch.setattr(command, "_serve", serve)
        monkeypatch.setattr("os._exit", leave)
        monkeypatch.setattr("sys.setswitchinterval", lambda _: None)
        monkeypatch.setattr("streamgen.observability.logging.configure_logging", lambda *_, **__: None)
        with pytest.raises(ExitedError) as exited:
            command.serve(EngineConfig(), ServerConfig(port=0))
    finally:
        hung.set()
        thread.join()
    return exited.value.args[0]


def test_C6_a_thread_that_hangs_does_not_hide_that_the_engine_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(monkeypatch, None) == 0
    assert exit_status(monkeypatch, EngineDeadError("The engine failed: step 7 hangs.")) == 1
    assert capsys.readouterr().err == "streamgen: The engine failed: step 7 hangs.\n"
