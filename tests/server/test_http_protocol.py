"""Requests by hand, byte for byte: what is no HTTP, what is too much of it, and what is pipelined."""

import asyncio
import json

import pytest
import websockets

from streamgen.server import http_protocol
from streamgen.types import FinishReason
from tests.server.fake_engine import FakeEngine
from tests.server.world import app_on, completion_body, listening

ASK = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def asking(*fields: str, **body: object) -> bytes:
    data = json.dumps(completion_body(**body)).encode()
    lines = "".join(f"{field}\r\n" for field in (*fields, f"Content-Length: {len(data)}"))
    return ASK + lines.encode() + b"\r\n" + data


async def connect(base):
    return await asyncio.open_connection(*base.removeprefix("http://").split(":"))


async def answer(reader):
    """Status, fields and body of one answer that tells its length."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:-2])}
    return int(lines[0].split()[1]), fields, await reader.readexactly(int(fields["content-length"]))


async def refusal(reader):
    """Status and error of the answer that is the connection's last."""
    status, fields, body = await answer(reader)
    assert fields["content-type"] == "application/json"
    assert fields["connection"] == "close"
    assert await reader.read() == b""
    error = json.loads(body)
    assert error.keys() == {"error"}
    assert error["error"].keys() == {"message", "type", "param", "code"}
    assert error["error"]["type"] == "invalid_request_error"
    return status, error["error"]


@pytest.fixture
def manual():
    engine = FakeEngine()
    engine.manual = True
    return engine


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"get / HTTP/1.1\r\n\r\n",
        b"GET v1/models HTTP/1.1\r\n\r\n",
        b"GET /v1/models/\xc3\xa9 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n",
        ASK + b"Content-Length: -1\r\n\r\n",
        ASK + b"Content-Length: 1e3\r\n\r\n",
        ASK + b"Content-Length: 99999999999999999999\r\n\r\n",
        ASK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        ASK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        ASK + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
        ASK + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFF\r\n",
    ],
)
async def test_bytes_that_are_no_http_get_an_error_of_the_common_shape(engine, data):
    async with listening(app_on(engine)) as base:
        reader, writer = await connect(base)
        writer.write(data)
        assert (await refusal(reader))[0] == 400
        writer.close()
    assert engine.streams == []


async def test_bytes_that_are_no_http_behind_a_request_abort_it(manual, caplog):
    async with listening(app_on(manual)) as base:
        reader, writer = await connect(base)
        writer.write(asking(stream=True))
        stream = await manual.next_stream()
        stream.say("Hi")
        await reader.readuntil(b"Hi")
        writer.write(b"\x00\x00")
        await asyncio.wait_for(stream.aborted.wait(), 5)
        # Nothing that is not the answer's own gets into it.
        assert b"HTTP/1.1" not in await reader.read()
        writer.close()
    assert not caplog.records


@pytest.mark.parametrize("kind", ["many fields", "one long field", "a long path", "trailers", "blank lines"])
async def test_a_head_without_an_end_is_cut_off(engine, kind, monkeypatch):
    monkeypatch.setattr(http_protocol, "MAX_HEAD_BYTES", 1000)
    begin, more = {
        "many fields": (b"GET / HTTP/1.1\r\n", b"X-Field: value\r\n" * 20),
        "one long field": (b"GET / HTTP/1.1\r\nX-Field: ", b"v" * 300),
        "a long path": (b"GET /", b"a" * 300),
        "trailers": (b"0\r\n", b"X-Field: value\r\n" * 20),
        "blank lines": (b"", b"\r\n" * 150),
    }[kind]
    async with listening(app_on(engine)) as base:
        reader, writer = await connect(base)
        if kind == "trailers":
            writer.write(ASK + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        # Not a byte more than is refused: what nobody has read when the connection closes would reset it.
        writer.write((begin + more * 60)[:1001])
        status, error = await asyncio.wait_for(refusal(reader), 5)
        assert (status, error["code"]) == (431, "request_too_large")
        writer.close()


@pytest.mark.parametrize("begin", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nX: "])
async def test_a_head_has_a_time_to_come(engine, begin, monkeypatch):
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.02)
    async with listening(app_on(engine)) as base:
        reader, writer = await connect(base)
        writer.write(begin)
        if begin:
            assert (await refusal(reader))[0] == 408
        else:
            assert await reader.read() == b""
        writer.close()


async def test_the_time_for_a_head_is_none_for_an_answer(manual, monkeypatch):
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.02)
    async with listening(app_on(manual)) as base:
        reader, writer = await connect(base)
        writer.write(asking())
        stream = await manual.next_stream()
        # Another connection's time begins later, and is over when this one's would have been.
        idle, idle_writer = await connect(base)
        assert await idle.read() == b""
        idle_writer.close()
        stream.say("Hi")
        stream.end(FinishReason.STOP)
        assert (await answer(reader))[0] == 200
        writer.close()


async def test_pipelined_requests_are_answered_in_turn(engine):
    async with listening(app_on(engine)) as base:
        reader, writer = await connect(base)
        writer.write(asking() + HEALTH + asking() + HEALTH * 40)
        bodies = [(await answer(reader))[2] for _ in range(43)]
        assert [b"Paris" in body for body in bodies[:4]] == [True, False, True, False]
        assert bodies[3:] == [b'{"status":"ok"}'] * 40
        writer.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("behind", [1, 5])
@pytest.mark.parametrize("how", ["close", "abort"])
async def test_C1_a_client_that_leaves_with_requests_pipelined_aborts_the_first(manual, stream, behind, how, caplog):
    async with listening(app_on(manual)) as base:
        reader, writer = await connect(base)
        writer.write(asking(stream=stream) + asking() * behind)
        request = await manual.next_stream()
        request.say("Hi")
        if stream:
            await reader.readuntil(b"Hi")
        getattr(writer.transport, how)()
        await asyncio.wait_for(request.aborted.wait(), 5)
    assert len(manual.streams) == 1
    assert not caplog.records


@pytest.mark.parametrize("apart", [False, True], ids=["in one piece", "head and body apart"])
async def test_an_upgrade_to_http_2_is_declined_and_the_request_served(engine, apart):
    """Java's HttpClient sends these fields with its first request to any http:// address."""
    fields = (
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    )
    async with listening(app_on(engine)) as base:
        reader, writer = await connect(base)
        for _ in range(2):
            data = asking(*fields)
            at = data.index(b"\r\n\r\n") + 4 if apart else len(data)
            writer.write(data[:at])
            await asyncio.sleep(0)
            writer.write(data[at:])
            status, _, body = await answer(reader)
            assert (status, b"Paris" in body) == (200, True)
        writer.write(HEALTH)
        assert (await answer(reader))[0] == 200
        writer.close()


async def test_a_websocket_cannot_begin_within_an_answer(manual):
    async with listening(app_on(manual)) as base:
        reader, writer = await connect(base)
        writer.write(asking(stream=True))
        stream = await manual.next_stream()
        stream.say("Hi")
        await reader.readuntil(b"Hi")
        writer.write(b"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        await asyncio.wait_for(stream.aborted.wait(), 5)
        assert b"HTTP/1.1" not in await reader.read()
        writer.close()
        async with websockets.connect(base.replace("http", "ws") + "/v1/ws", subprotocols=["streamgen.v1"]) as socket:
            assert "session.created" in await socket.recv()
