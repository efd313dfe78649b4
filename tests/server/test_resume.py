"""Streams with event ids: numbered, kept for a while, and read on from where a connection was lost."""

import asyncio
import json

import httpx
import pytest

from streamgen.config import ServerConfig
from streamgen.errors import StepError
from streamgen.types import FinishReason
from tests.server.fake_engine import FakeEngine
from tests.server.test_lifecycle import leave, post
from tests.server.test_ws import until
from tests.server.world import app_on, chat_body, error_of, in_process, listening

CHAT = "/v1/chat/completions"
WITH_IDS = {"stream": True, "stream_options": {"include_event_ids": True}}
CONFIG = ServerConfig(api_key=("secret", "another"))
KEY = {"Authorization": "Bearer secret"}


def numbered(text):
    """(number, data) of each event; heartbeats are skipped."""
    found = []
    for block in text.split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        number, data = block.split("\n")
        found.append((int(number.removeprefix("id: ")), data.removeprefix("data: ")))
    return found


def chunk_id(data):
    return data.split('"id":"')[1].split('"')[0]


class FakeTimers:
    def __init__(self):
        self.running = []

    def call_later(self, delay, run):
        timer = FakeTimer(self, delay, run)
        self.running.append(timer)
        return timer


class FakeTimer:
    def __init__(self, timers, delay, run):
        self.timers, self.delay, self.run = timers, delay, run

    def cancel(self):
        if self in self.timers.running:
            self.timers.running.remove(self)


@pytest.fixture
async def manual():
    engine = FakeEngine()
    engine.manual = True
    return engine


async def test_events_are_numbered_only_if_asked(client, engine):
    text = (await client.post(CHAT, json=chat_body(**WITH_IDS))).text
    events = numbered(text)
    assert [number for number, _ in events] == [1, 2, 3, 4, 5]
    assert events[-1] == (5, "[DONE]")
    assert "id: " not in (await client.post(CHAT, json=chat_body(stream=True))).text
    options = {"include_event_ids": True, "include_usage": True}
    events = numbered((await client.post(CHAT, json=chat_body(stream=True, stream_options=options))).text)
    assert [number for number, _ in events] == [1, 2, 3, 4, 5, 6]
    assert '"choices":[]' in events[4][1]


async def test_a_lost_connection_is_taken_up_again(manual):
    async with listening(app_on(manual, CONFIG)) as base, httpx.AsyncClient(base_url=base, headers=KEY) as client:
        reader, writer = await post(base, CHAT, chat_body(**WITH_IDS))
        request = await manual.next_stream()
        request.say("one", "two")
        head = (await reader.readuntil(b'"two"')).decode()
        stream = chunk_id(head)
        await leave(writer, "reset")
        request.say("three")
        request.end(FinishReason.STOP)
        for seen, numbers in ((2, [3, 4, 5]), (1, [2, 3, 4, 5]), (None, [1, 2, 3, 4, 5]), (5, [])):
            headers = {} if seen is None else {"Last-Event-ID": str(seen)}
            response = await client.get(f"/v1/streams/{stream}", headers=headers)
            assert response.status_code == 200
            events = numbered(response.text)
            assert [number for number, _ in events] == numbers
            if numbers:
                assert events[-1][1] == "[DONE]"
                assert {chunk_id(data) for _, data in events[:-1]} == {stream}
        assert not request.aborted.is_set()


async def test_a_stream_goes_on_while_it_is_resumed(manual):
    async with listening(app_on(manual, CONFIG)) as base, httpx.AsyncClient(base_url=base, headers=KEY) as client:
        reader, writer = await post(base, CHAT, chat_body(**WITH_IDS))
        request = await manual.next_stream()
        request.say("one")
        stream = chunk_id((await reader.readuntil(b'"one"')).decode())
        await leave(writer, "reset")
        task = asyncio.create_task(client.get(f"/v1/streams/{stream}", headers={"Last-Event-ID": "1"}))
        request.say("two")
        request.fail(StepError("A step failed."))
        events = numbered((await task).text)
    assert [number for number, _ in events] == [2, 3, 4]
    assert '"two"' in events[0][1]
    assert "step_failed" in events[1][1]


async def test_a_new_reader_replaces_the_old_one(manual):
    async with listening(app_on(manual, CONFIG)) as base, httpx.AsyncClient(base_url=base, headers=KEY) as client:
        reader, writer = await post(base, CHAT, chat_body(**WITH_IDS), ["Connection: close"])
        request = await manual.next_stream()
        request.say("one")
        stream = chunk_id((await reader.readuntil(b'"one"')).decode())
        task = asyncio.create_task(client.get(f"/v1/streams/{stream}", headers={"Last-Event-ID": "1"}))
        rest = await reader.read()
        assert b"Another connection" in rest
        assert b"data: [DONE]" in rest
        writer.close()
        request.end(FinishReason.STOP)
        assert [number for number, _ in numbered((await task).text)] == [2, 3]
        assert not request.aborted.is_set()


async def test_whose_streams_may_be_resumed_and_from_where():
    async with in_process(app_on(FakeEngine(), CONFIG), headers=KEY) as client:
        stream = chunk_id((await client.post(CHAT, json=chat_body(**WITH_IDS))).text)
        path = f"/v1/streams/{stream}"
        for name, headers, status in (
            ("no key", {"Authorization": ""}, 401),
            ("another's", {"Authorization": "Bearer another"}, 404),
            ("not a number", {"Last-Event-ID": "x"}, 400),
            ("negative", {"Last-Event-ID": "-1"}, 400),
            ("absurd", {"Last-Event-ID": "9" * 5000}, 400),
            ("other digits", {"Last-Event-ID": "\u0661".encode()}, 400),
            ("yet to come", {"Last-Event-ID": "6"}, 400),
            ("right", {"Last-Event-ID": "4"}, 200),
        ):
            response = await client.get(path, headers=headers)
            assert response.status_code == status, name
            if status != 200:
                error_of(response)
        for other in ("nothing", stream + "/", stream.upper()):
            assert (await client.get(f"/v1/streams/{other}")).status_code == 404
        plain = chunk_id((await client.post(CHAT, json=chat_body(stream=True))).text)
        assert (await client.get(f"/v1/streams/{plain}")).status_code == 404


async def test_nobody_comes_back_in_time(manual):
    app = app_on(manual, CONFIG)
    timers = FakeTimers()
    app.server.streams._call_later = timers.call_later
    async with listening(app) as base, httpx.AsyncClient(base_url=base, headers=KEY) as client:
        reader, writer = await post(base, CHAT, chat_body(**WITH_IDS))
        request = await manual.next_stream()
        request.say("one")
        stream = chunk_id((await reader.readuntil(b'"one"')).decode())
        await leave(writer, "reset")
        async with asyncio.timeout(5):
            while not timers.running:  # noqa: ASYNC110 - the server tells nobody that it noticed
                await asyncio.sleep(0)
        assert not request.aborted.is_set()
        timers.running.pop().run()
        assert request.aborted.is_set()
        assert (await client.get(f"/v1/streams/{stream}")).status_code == 404
        assert len(app.server.streams) == 0


async def test_what_is_kept_is_bounded_in_bytes(manual):
    config = ServerConfig(api_key=("secret",), stream_buffer_bytes=2000)
    async with listening(app_on(manual, config)) as base, httpx.AsyncClient(base_url=base, headers=KEY) as client:
        reader, writer = await post(base, CHAT, chat_body(**WITH_IDS))
        request = await manual.next_stream()
        request.say("one")
        stream = chunk_id((await reader.readuntil(b'"one"')).decode())
        await leave(writer, "reset")
        for _ in range(50):
            request.say("more and more")
        await asyncio.wait_for(request.aborted.wait(), 5)
        response = await client.get(f"/v1/streams/{stream}", headers={"Last-Event-ID": "1"})
        assert response.status_code == 409
        error_of(response)


async def test_streams_that_are_kept_are_bounded_in_number(engine):
    app = app_on(engine)
    app.server.streams.shares.max_items = 2
    async with in_process(app) as client:
        ids = [chunk_id((await client.post(CHAT, json=chat_body(**WITH_IDS))).text) for _ in range(4)]
        kept = [(await client.get(f"/v1/streams/{stream}")).status_code for stream in ids]
    assert kept == [404, 404, 200, 200]


async def test_a_shutdown_keeps_none_but_lets_those_that_are_read_finish(manual):
    app = app_on(manual)
    async with in_process(app) as client:
        task = asyncio.create_task(client.post(CHAT, json=chat_body(**WITH_IDS)))
        request = await manual.next_stream()
        request.say("one")
        await app.drain(0)
        assert not request.aborted.is_set()
        request.end(FinishReason.STOP)
        assert [number for number, _ in numbered((await task).text)] == [1, 2, 3]


async def begun(base, engine, key, headers=()):
    """A stream whose first event is read, and whose connection is lost: its id, and the engine's end of it."""
    lines = [f"Authorization: Bearer {key}", *headers]
    host, port = base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(chat_body(**WITH_IDS)).encode()
    head = "\r\n".join([f"POST {CHAT} HTTP/1.1", "Host: localhost", *lines, f"Content-Length: {len(data)}", "", ""])
    writer.write(head.encode() + data)
    request = await engine.next_stream()
    request.say("first")
    stream = chunk_id((await reader.readuntil(b'"first"')).decode())
    return stream, request, writer


async def test_what_all_streams_keep_is_bounded_while_they_grow(manual):
    app = app_on(manual, CONFIG)
    streams = app.server.streams
    streams.shares.max_bytes = 10_000
    async with listening(app) as base:
        kept = [await begun(base, manual, "secret") for _ in range(3)]
        for _, _, writer in kept:
            await leave(writer, "reset")
        await until(lambda: len(streams._timers) == 3)
        for number in range(10):
            for _, request, _ in kept:
                request.say("x" * 500)
                await until(lambda request=request: not request._news or request.aborted.is_set())
                assert streams.shares.num_bytes <= 10_000, number
                streams.shares.check()
        # Those that began first went first, and their requests with them.
        assert [request.aborted.is_set() for _, request, _ in kept] == [True, True, False]
        assert list(streams._streams) == [kept[2][0]]


async def test_another_tenants_streams_within_its_share_are_not_touched(manual):
    app = app_on(manual, CONFIG)
    streams = app.server.streams
    streams.shares.max_bytes = 10_000
    async with listening(app) as base, httpx.AsyncClient(base_url=base) as client:
        # The oldest of all has ended, which makes it the first to go if it were up to age.
        quiet, request, writer = await begun(base, manual, "another")
        request.end(FinishReason.STOP)
        await until(lambda: streams._streams[quiet].ended)
        writer.close()
        greedy = [await begun(base, manual, "secret") for _ in range(2)]
        for _, request, writer in greedy:
            await leave(writer, "reset")
            for _ in range(12):
                request.say("x" * 500)
            await until(lambda request=request: not request._news)
        assert list(streams._streams) == [quiet, greedy[1][0]]
        response = await client.get(f"/v1/streams/{quiet}", headers={"Authorization": "Bearer another"})
        assert numbered(response.text)[-1][1] == "[DONE]"


async def test_a_stream_that_is_read_goes_on_when_it_is_kept_no_longer(manual):
    app = app_on(manual, CONFIG)
    streams = app.server.streams
    streams.shares.max_bytes = 2_000
    async with listening(app) as base, httpx.AsyncClient(base_url=base, headers=KEY) as client:
        task = asyncio.create_task(client.post(CHAT, json=chat_body(**WITH_IDS)))
        request = await manual.next_stream()
        request.say("first")
        await until(lambda: len(streams) == 1)
        (stream,) = streams._streams.values()
        for _ in range(20):
            request.say("x" * 500)
            await until(lambda: not request._news)
            assert streams.shares.num_bytes <= 2_000
        assert len(streams) == 0
        # What is sent is kept no more.
        await until(lambda: stream.replay.num_bytes == 0)
        request.end(FinishReason.STOP)
        assert [number for number, _ in numbered((await task).text)] == list(range(1, 24))
        assert not request.aborted.is_set()
