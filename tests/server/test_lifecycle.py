"""Clients that leave, clients that lag, an engine that is not ready, two apps: on real sockets where that matters."""

import asyncio
import contextlib
import json
import re

import httpx
import pytest

from streamgen.config import ServerConfig
from streamgen.engine.client import EngineClient
from streamgen.errors import ContextLengthError, DrainingError, EngineDeadError, QueueFullError
from streamgen.observability.metrics import Metrics
from streamgen.server.app import create_app
from streamgen.server.http_protocol import HttpProtocol
from streamgen.types import FinishReason
from tests.server.fake_engine import FakeEngine
from tests.server.world import (
    app_on,
    chat_body,
    completion_body,
    error_of,
    events,
    in_process,
    listening,
    serving_model,
)

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EVERYTHING = ServerConfig(api_key=("secret",), allowed_origins=("https://a.example",), root_path="/llm")


async def post(base, path, body, headers=()):
    """A request by hand, whose socket a test can close whenever it likes."""
    host, port = base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}:{port}", "Authorization: Bearer secret", *headers]
    lines += ["Content-Type: application/json", f"Content-Length: {len(data)}", "", ""]
    writer.write("\r\n".join(lines).encode() + data)
    await writer.drain()
    return reader, writer


async def leave(writer, how):
    if how == "reset":
        writer.transport.abort()
    else:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.fixture
async def manual():
    engine = FakeEngine()
    engine.manual = True
    return engine


@pytest.mark.parametrize("http, how", [(HttpProtocol, "close"), (HttpProtocol, "reset"), ("h11", "reset")])
@pytest.mark.parametrize("path, body", [(CHAT, chat_body), (COMPLETIONS, completion_body)], ids=["chat", "text"])
@pytest.mark.parametrize("when", ["queued", "streaming", "whole", "whole, with tokens"])
async def test_C1_a_client_that_leaves_aborts_its_request(manual, http, how, path, body, when):
    """With all of the middleware on. The abort is asked for as soon as the loop hears of the departure."""
    async with listening(app_on(manual, EVERYTHING), http) as base:
        stream = not when.startswith("whole")
        origin = ["Origin: https://a.example"]
        reader, writer = await post(base, path, body(stream=stream, n=2), origin)
        request = await manual.next_stream()
        if when in {"streaming", "whole, with tokens"}:
            request.say("Hello")
        if when == "streaming":
            assert b"Hello" in await reader.readuntil(b"Hello")
        assert not request.aborted.is_set()
        await leave(writer, how)
        await asyncio.wait_for(request.aborted.wait(), 5)
        # Alive: the next client is served.
        manual.manual = False
        async with httpx.AsyncClient(base_url=base, headers={"Authorization": "Bearer secret"}) as client:
            assert (await client.post(path, json=body())).status_code == 200


async def test_C1_several_prompts_are_all_aborted(manual):
    async with listening(app_on(manual)) as base:
        _, writer = await post(base, COMPLETIONS, completion_body(prompt=["a", "b", "c"], stream=True))
        requests = [await manual.next_stream() for _ in range(3)]
        requests[1].say("x")
        await leave(writer, "reset")
        for request in requests:
            await asyncio.wait_for(request.aborted.wait(), 5)


async def test_C1_a_client_that_leaves_before_its_body_is_whole(manual):
    async with listening(app_on(manual)) as base:
        host, port = base.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n{{".encode())
        await writer.drain()
        await leave(writer, "reset")
        manual.manual = False
        async with httpx.AsyncClient(base_url=base) as client:
            assert (await client.post(CHAT, json=chat_body())).status_code == 200
    assert len(manual.streams) == 1


async def test_C1_a_stream_that_ended_well_is_not_counted_as_left(manual):
    async with listening(app_on(manual)) as base:
        reader, writer = await post(base, CHAT, chat_body(stream=True), ["Connection: close"])
        request = await manual.next_stream()
        request.say("a")
        request.end(FinishReason.STOP)
        text = (await reader.read()).decode()
        assert text.rstrip().endswith("0")
        assert "data: [DONE]" in text
        writer.close()


async def test_tokens_arrive_one_by_one(manual):
    """Each chunk is read before the next token exists."""
    async with (
        listening(app_on(manual)) as base,
        httpx.AsyncClient(base_url=base) as client,
        client.stream("POST", CHAT, json=chat_body(stream=True)) as response,
    ):
        request = await manual.next_stream()
        lines = response.aiter_lines()
        for word in ("one", "two", "three"):
            request.say(word)
            assert json.loads((await anext(lines)).removeprefix("data: "))["choices"][0]["delta"]["content"] == word
            assert await anext(lines) == ""
        request.end(FinishReason.STOP)
        assert '"finish_reason":"stop"' in await anext(lines)


async def test_heartbeats_only_in_silence(manual):
    config = ServerConfig(sse_keep_alive_interval=0.1)
    async with (
        listening(app_on(manual, config)) as base,
        httpx.AsyncClient(base_url=base) as client,
        client.stream("POST", CHAT, json=chat_body(stream=True)) as response,
    ):
        request = await manual.next_stream()
        lines = response.aiter_lines()
        assert [await anext(lines) for _ in range(4)] == [": keep-alive", "", ": keep-alive", ""]
        request.end(FinishReason.STOP, text="x")
        rest = [line async for line in lines if line and not line.startswith(":")]
    assert len(rest) == 3
    async with in_process(app_on(FakeEngine())) as client:
        assert ": " not in (await client.post(CHAT, json=chat_body(stream=True))).text.replace("data: ", "")


async def test_a_reader_that_lags_holds_up_nobody_else(manual):
    """Nothing is read of the first stream, and far more is written to it than sockets hold."""
    async with listening(app_on(manual)) as base:
        _, writer = await post(base, CHAT, chat_body(stream=True))
        slow = await manual.next_stream()
        for _ in range(64):
            slow.say("x" * 2**18)
        async with httpx.AsyncClient(base_url=base) as client:
            task = asyncio.create_task(client.post(CHAT, json=chat_body(stream=True)))
            (await manual.next_stream()).end(FinishReason.STOP, text="quick")
            assert len(events((await task).text)) == 2
        # What the lagging reader was not sent is still with the engine's queue, not in the server's memory.
        assert len(slow._news) > 32
        await leave(writer, "reset")
        await asyncio.wait_for(slow.aborted.wait(), 5)


async def test_before_the_model_is_loaded():
    app = create_app(None, None, ServerConfig())
    async with in_process(app) as client:
        assert (await client.get("/health")).status_code == 200
        for method, path in (("GET", "/ready"), ("POST", CHAT), ("GET", "/v1/models"), ("POST", "/tokenize")):
            response = await client.request(method, path, json=chat_body() if method == "POST" else None)
            assert response.status_code == 503, path
            assert error_of(response)["code"] == "not_ready"
            assert response.headers["retry-after"]
        engine = FakeEngine()
        engine.ready = False
        app.server.attach(engine, serving_model())
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/v1/models")).status_code == 200
        engine.ready = True
        assert (await client.get("/ready")).json() == {"status": "ready"}
        assert (await client.post(CHAT, json=chat_body())).status_code == 200


async def test_at_shutdown_and_after_a_failure():
    engine = FakeEngine()
    app = app_on(engine)
    async with in_process(app) as client:
        await app.drain(0)
        for method, path in (("GET", "/ready"), ("POST", CHAT)):
            response = await client.request(method, path, json=chat_body() if method == "POST" else None)
            assert response.status_code == 503
            assert error_of(response)["code"] == "draining"
        assert (await client.get("/health")).status_code == 200
        engine.healthy = False
        response = await client.get("/health")
        assert response.status_code == 503
        assert error_of(response)["code"] == "engine_dead"
        engine.healthy = True
        app.server.fail("The weights are not readable.")
        assert "weights" in error_of(await client.get("/health"))["message"]


@pytest.mark.parametrize(
    "refusal, status",
    [
        (QueueFullError("Full.", retry_after=3), 429),
        (DrainingError("Bye."), 503),
        (EngineDeadError("Dead."), 503),
        (ContextLengthError(8, 9, 1, "prompt", "pool's"), 400),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_what_the_engine_refuses_has_its_status_not_a_stream(client, engine, refusal, status, stream):
    engine.refusal = refusal
    response = await client.post(CHAT, json=chat_body(stream=stream))
    assert response.status_code == status
    assert error_of(response)["message"] == refusal.message
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_exception_that_nobody_foresaw(stream):
    class Broken(FakeEngine):
        def add(self, *_args, **_kwargs):
            raise ZeroDivisionError("secret detail")

    async with in_process(app_on(Broken())) as client:
        response = await client.post(CHAT, json=chat_body(stream=stream))
        assert response.status_code == 500
        assert "secret" not in response.text
        assert error_of(response)["code"] == "internal_error"


async def test_an_exception_in_a_stream_is_an_event_without_its_details(client, engine):
    engine.texts = ()

    async def get(_stream):
        raise ZeroDivisionError("secret detail")

    engine.manual = True
    task = asyncio.create_task(client.post(CHAT, json=chat_body(stream=True)))
    request = await engine.next_stream()
    request.get = get.__get__(request)
    request.say("x")
    _, error = events((await task).text)
    assert error["error"]["code"] == "internal_error"
    assert "secret" not in str(error)
    assert request.aborted.is_set()


async def test_a_deltas_error_fails_the_answer(client, engine):
    engine.reason = FinishReason.ERROR
    response = await client.post(CHAT, json=chat_body())
    assert response.status_code == 500
    error_of(response)
    last = events((await client.post(CHAT, json=chat_body(stream=True))).text)[-1]
    assert last["error"]["code"] == "engine_error"


async def test_G2_two_apps_in_one_process_know_nothing_of_each_other():
    one, two = FakeEngine(), FakeEngine()
    first = app_on(one, ServerConfig(api_key=("one",)))
    second = app_on(two, ServerConfig(api_key=("two",)))
    for app, key, status in ((first, "one", 200), (first, "two", 401), (second, "two", 200), (second, "one", 401)):
        async with in_process(app, headers={"Authorization": f"Bearer {key}"}) as client:
            assert (await client.post(CHAT, json=chat_body())).status_code == status
    assert (len(one.streams), len(two.streams)) == (1, 1)


async def test_a_long_body_is_prepared_beside_the_loop_and_the_pool_is_bounded(engine):
    app = app_on(engine)
    app.server.serving = serving_model(max_model_len=10**7)
    async with in_process(app) as client:
        assert (
            await client.post(COMPLETIONS, json=completion_body(prompt="x" * 5000, max_tokens=1))
        ).status_code == 400
        engine.max_model_len = 10**7
        assert (await client.post(COMPLETIONS, json=completion_body(prompt="x" * 5000))).status_code == 200
        app.server.workers._waiting = 10**6
        response = await client.post(COMPLETIONS, json=completion_body(prompt="x" * 5000))
        assert response.status_code == 429
        assert response.headers["retry-after"]
        assert (await client.post(COMPLETIONS, json=completion_body())).status_code == 200


def test_the_fake_engine_has_the_face_of_a_real_one():
    engine: EngineClient = FakeEngine()
    assert engine.ready


async def test_the_time_of_an_exchange_is_no_matter_of_the_wall_clock():
    """A clock that was set back while a request ran would give it a negative duration."""
    times = iter([2_000_000_000.0, 1_000_000_000.0, 500_000_000.0])
    metrics = Metrics()
    app = create_app(FakeEngine(), serving_model(), ServerConfig(), metrics=metrics, clock=lambda: next(times))
    async with in_process(app) as client:
        assert (await client.post("/v1/completions", json=completion_body())).status_code == 200
    text = metrics.render()[0].decode()
    (total,) = re.findall(r'http_request_duration_seconds_sum\{handler="/v1/completions".*\} (\S+)', text)
    assert 0 <= float(total) < 60
