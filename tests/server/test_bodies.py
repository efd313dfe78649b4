"""What bodies cost while they arrive, and who pays."""

import asyncio
import json
import threading

import httpx

from streamgen.config import ServerConfig
from streamgen.server import generate
from streamgen.server.held_bytes import FREE_BYTES
from streamgen.server.http_protocol import HttpProtocol
from streamgen.types import FinishReason
from tests.server.fake_engine import FakeEngine
from tests.server.test_http_protocol import answer, connect
from tests.server.test_ws import until
from tests.server.world import app_on, chat_body, completion_body, error_of, in_process, listening

COMPLETIONS = "/v1/completions"
LARGE = json.dumps(completion_body(prompt="x", unknown="y" * 4 * FREE_BYTES)).encode()


async def begin(base, part):
    """A request with a large body, of which `part` is sent."""
    reader, writer = await connect(base)
    writer.write(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(LARGE)}\r\n\r\n".encode())
    writer.write(part)
    return reader, writer


def test_the_longest_body_by_default():
    assert ServerConfig().max_body_bytes == 8 * 2**20


async def test_what_unfinished_bodies_hold_is_bounded_over_all_connections(engine):
    app = app_on(engine)
    app.server.held.limit = 3 * FREE_BYTES
    async with listening(app) as base, httpx.AsyncClient(base_url=base) as client:
        half = LARGE[: len(LARGE) // 2]
        begun = [await begin(base, half) for _ in range(2)]
        await until(lambda: app.server.held.total == 2 * (len(half) - FREE_BYTES))
        for path in (COMPLETIONS, "/tokenize"):
            response = await client.post(path, content=LARGE)
            assert response.status_code == 429
            assert response.headers["retry-after"]
            assert error_of(response)["code"] == "queue_full"
        # Ordinary requests do not pay for it.
        assert (await client.post(COMPLETIONS, json=completion_body())).status_code == 200
        (first, first_writer), (_, second_writer) = begun
        second_writer.transport.abort()
        await until(lambda: app.server.held.total == len(half) - FREE_BYTES)
        first_writer.write(LARGE[len(half) :])
        assert (await answer(first))[0] == 200
        first_writer.close()
        assert app.server.held.total == 0
        assert (await client.post(COMPLETIONS, content=LARGE)).status_code == 200


async def test_a_body_counts_no_longer_once_it_is_understood():
    engine = FakeEngine()
    engine.manual = True
    app = app_on(engine)
    async with in_process(app) as client:
        task = asyncio.create_task(client.post(COMPLETIONS, content=LARGE))
        request = await engine.next_stream()
        assert app.server.held.total == 0
        request.end(FinishReason.STOP)
        assert (await task).status_code == 200
        assert (await client.post(COMPLETIONS, content=b"[" + LARGE)).status_code == 400
        assert app.server.held.total == 0


async def test_C7_a_large_body_is_parsed_beside_the_loop(engine, monkeypatch):
    threads = []

    def prepare(*args, **kwargs):
        threads.append(threading.get_ident())
        return original(*args, **kwargs)

    original = generate.prepare
    monkeypatch.setattr(generate, "prepare", prepare)
    async with in_process(app_on(engine)) as client:
        assert (await client.post(COMPLETIONS, content=LARGE)).status_code == 200
        assert (await client.post("/v1/chat/completions", json=chat_body())).status_code == 200
    assert threads[0] != threading.get_ident()
    assert threads[1] == threading.get_ident()


async def test_pipelined_bodies_are_not_read_without_end():
    """The first request is not answered; what waits behind it stays, for the most part, with the client."""
    most = 0
    connections = []

    class Watched(HttpProtocol):
        def data_received(self, data):
            nonlocal most
            super().data_received(data)
            connections.append(self)
            most = max(most, sum(len(cycle.body) for cycle, _ in self.pipeline))

    engine = FakeEngine()
    engine.manual = True
    async with listening(app_on(engine), Watched) as base:
        reader, writer = await begin(base, LARGE)
        request = await engine.next_stream()
        body = json.dumps(completion_body(unknown="y" * 60_000)).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        for _ in range(20):
            writer.write(head + body)
        await until(lambda: connections[-1].flow.read_paused)
        engine.manual = False
        request.end(FinishReason.STOP)
        for _ in range(21):
            assert (await answer(reader))[0] == 200
        writer.close()
    assert most <= 64 * 1024 + 256 * 1024
