"""Start-up and shut-down: what a client sees while the model loads, while the server drains, when the engine dies."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
import websockets

from streamgen.config import ServerConfig
from streamgen.errors import DrainingError, EngineDeadError, ModelLoadError
from streamgen.server.app import create_app
from streamgen.server.launch import Launch, Loaded
from streamgen.server.listen import listen
from streamgen.types import FinishReason
from tests.server.fake_engine import FakeEngine, FakeStream
from tests.server.world import chat_body, serving_model


class StoppableEngine(FakeEngine):
    def __init__(self) -> None:
        super().__init__()
        self.manual = True
        self.on_death: Callable[[str], None] | None = None
        self.closed = 0

    async def shutdown(self) -> None:
        self.closed += 1
        for stream in self.streams:
            stream.fail(DrainingError("The server is shutting down."))


class Run:
    """A launched server, whose model a test lets load or fail."""

    def __init__(self, shutdown_timeout: float) -> None:
        config = ServerConfig(port=0, shutdown_timeout=shutdown_timeout)
        sockets = listen(config.host, config.port)
        self.port = sockets[0].getsockname()[1]
        self.engine = StoppableEngine()
        self.loaded: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()
        self.announced = asyncio.Event()
        self.launch = Launch(
            create_app(None, None, config),
            sockets,
            self._load,
            config,
            when_ready=lambda _serving: self.announced.set(),
        )
        self.task = asyncio.create_task(self.launch.run())
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=20)

    async def _load(self) -> Loaded:
        return await self.loaded

    async def ready(self) -> None:
        self.loaded.set_result(Loaded(self.engine, serving_model()))
        await self.announced.wait()

    async def status(self, path: str) -> int:
        return (await self.client.get(path)).status_code


@asynccontextmanager
async def launched(shutdown_timeout: float = 20.0) -> AsyncIterator[Run]:
    run = Run(shutdown_timeout)
    try:
        yield run
    finally:
        run.launch.stop()
        await run.client.aclose()
        await asyncio.gather(run.task, return_exceptions=True)


@asynccontextmanager
async def open_stream(run: Run) -> AsyncIterator[tuple[AsyncIterator[str], FakeStream]]:
    """A stream whose first text has come; the rest of its lines, and the engine's end of it."""
    body = chat_body(stream=True)
    async with run.client.stream("POST", "/v1/chat/completions", json=body) as response:
        stream = await run.engine.next_stream()
        stream.say("Hello")
        lines = response.aiter_lines()
        assert "Hello" in await anext(lines)
        yield lines, stream


async def test_health_answers_while_the_model_loads() -> None:
    async with launched() as run:
        assert await run.status("/health") == 200
        assert await run.status("/ready") == 503
        refused = await run.client.post("/v1/chat/completions", json=chat_body())
        assert refused.status_code == 503
        assert "Retry-After" in refused.headers
        await run.ready()
        assert await run.status("/ready") == 200


async def test_a_model_that_does_not_load_ends_the_server_with_its_reason() -> None:
    async with launched() as run:
        assert await run.status("/health") == 200
        run.loaded.set_exception(ModelLoadError("no such folder"))
        with pytest.raises(ModelLoadError, match="no such folder"):
            await run.task


async def test_a_stop_while_loading_ends_at_once() -> None:
    async with launched() as run:
        assert await run.status("/health") == 200
        run.launch.stop()
        await run.task
        assert run.loaded.cancelled()


async def test_draining_finishes_streams_and_refuses_new_ones() -> None:
    async with launched() as run:
        await run.ready()
        async with open_stream(run) as (lines, stream):
            run.launch.stop()
            while await run.status("/ready") == 200:
                pass  # the stop is taken note of by one of the loop's next turns
            refused = await run.client.post("/v1/chat/completions", json=chat_body())
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "draining"
            stream.say(" world")
            stream.end(FinishReason.STOP)
            text = "\n".join([line async for line in lines])
        assert " world" in text
        assert '"finish_reason":"stop"' in text
        assert "data: [DONE]" in text
        await run.task
        assert run.engine.closed == 1


async def test_what_outlasts_the_grace_time_gets_an_error_and_an_end() -> None:
    async with launched(shutdown_timeout=0.0) as run:
        await run.ready()
        async with open_stream(run) as (lines, _):
            run.launch.stop()
            text = "\n".join([line async for line in lines])
        assert '"code":"draining"' in text
        assert text.rstrip().endswith("data: [DONE]")
        await run.task


async def test_a_request_that_has_not_come_whole_by_the_end_is_told_why(caplog: pytest.LogCaptureFixture) -> None:
    async with launched(shutdown_timeout=0.0) as run:
        await run.ready()
        reader, writer = await asyncio.open_connection("127.0.0.1", run.port)
        # Without the answer to Expect, nobody knows that the server waits for the body.
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        run.launch.stop()
        answer = await reader.read()
        assert b" 503 " in answer
        assert b'"code":"draining"' in answer
        writer.close()
        await run.task
    assert not [record for record in caplog.records if record.exc_info]


HALF_SENT = {
    "body": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n{",
    "chunks": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
    "head": b"POST /v1/completions HTTP/1.1\r\nHost: local",
}


@pytest.mark.parametrize("half", HALF_SENT)
async def test_draining_does_not_wait_for_requests_that_have_not_come_whole(half: str) -> None:
    async with launched() as run:
        await run.ready()
        async with open_stream(run) as (lines, stream):
            reader, writer = await asyncio.open_connection("127.0.0.1", run.port)
            writer.write(HALF_SENT[half])
            if half != "head":
                assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
            assert await run.status("/health") == 200
            run.launch.stop()
            answer = await asyncio.wait_for(reader.read(), 5)
            assert b" 503 " in answer.split(b"\r\n")[0]
            assert b'"code":"draining"' in answer
            assert b"connection: close" in answer.lower()
            assert b"retry-after: " in answer.lower()
            writer.close()
            # What runs goes on.
            stream.say(" world")
            stream.end(FinishReason.STOP)
            assert " world" in "\n".join([line async for line in lines])
        await asyncio.wait_for(run.task, 5)


async def test_a_half_sent_body_alone_holds_up_nothing() -> None:
    async with launched() as run:
        await run.ready()
        reader, writer = await asyncio.open_connection("127.0.0.1", run.port)
        writer.write(HALF_SENT["body"])
        await reader.readuntil(b"\r\n\r\n")
        run.launch.stop()
        await asyncio.wait_for(run.task, 5)
        writer.close()


async def test_draining_closes_websockets_with_1001() -> None:
    async with launched() as run:
        await run.ready()
        url = f"ws://127.0.0.1:{run.port}/v1/ws"
        async with websockets.connect(url, subprotocols=["streamgen.v1"]) as socket:
            await socket.recv()
            run.launch.stop()
            await socket.wait_closed()
            assert socket.close_code == 1001
        await run.task


async def test_an_engine_that_dies_ends_the_server_with_an_error() -> None:
    async with launched() as run:
        await run.ready()
        assert await run.status("/health") == 200
        run.engine.on_death("CUDA error: an illegal memory access was encountered")
        with pytest.raises(EngineDeadError, match="illegal memory access"):
            await run.task
