"""WebSockets by hand, byte for byte: handshakes that are none, and frames that break the rules."""

import asyncio
import json

import pytest

from streamgen.server.held_bytes import FREE_BYTES
from streamgen.server.http_protocol import HttpProtocol
from streamgen.server.ws_connection import WebSocketConnection
from streamgen.server.ws_protocol import MAX_BAD_FRAMES
from tests.server.fake_engine import FakeEngine
from tests.server.test_http_protocol import answer, connect, refusal
from tests.server.test_ws import house, until
from tests.server.world import app_on, listening
from tests.server.ws_fakes import serve

FIELDS = {
    "Host": "localhost",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "streamgen.v1",
}
TEXT, CONTINUED, PING, PONG = 1, 0, 9, 10


def handshake(first: str = "GET /v1/ws", more: str = "", **changes: str | None) -> bytes:
    fields = FIELDS | {name.replace("_", "-"): value for name, value in changes.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value is not None)
    return f"{first} HTTP/1.1\r\n{lines}{more}\r\n".encode()


def frame(opcode: int, data: bytes, *, end: bool = True) -> bytes:
    assert len(data) < 126
    return bytes([end << 7 | opcode, 0x80 | len(data)]) + bytes(4) + data


async def received(reader) -> tuple[int, bytes]:
    """Opcode and data of one frame of the server's."""
    first, length = await reader.readexactly(2)
    if length == 126:
        length = int.from_bytes(await reader.readexactly(2), "big")
    return first & 15, await reader.readexactly(length)


async def greeted(reader) -> None:
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    assert b"session.created" in (await received(reader))[1]


@pytest.mark.parametrize(
    "data, status",
    [
        (handshake(Sec_WebSocket_Version="8"), 400),
        (handshake(Sec_WebSocket_Key=None), 400),
        (handshake(Sec_WebSocket_Key="x"), 400),
        (handshake(more="Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"), 400),
        (handshake(more="Origin: http://localhost\r\n" * 2), 400),
        (handshake(Sec_WebSocket_Protocol="a b"), 400),
        (handshake("POST /v1/ws"), 405),
        (handshake("POST /v1/ws", more="Content-Length: 5\r\n") + b"hello", 400),
        (handshake("GET /v1/nothing"), 404),
        (handshake("GET /v1/models"), 404),
        (handshake(Sec_WebSocket_Protocol=None), 400),
        (handshake(more="X: " + "y" * 20000 + "\r\n"), 431),
        (handshake(more="".join(f"X-{i}: y\r\n" for i in range(300))), 431),
    ],
)
async def test_a_handshake_that_is_none_gets_an_error_of_the_common_shape(engine, data, status, caplog):
    async with listening(app_on(engine)) as base:
        reader, writer = await connect(base)
        writer.write(data)
        assert (await asyncio.wait_for(refusal(reader), 5))[0] == status
        writer.close()
    assert not caplog.records


async def test_long_cookies_of_other_servers_of_this_machine_do_not_matter(engine):
    async with listening(app_on(engine)) as base:
        reader, writer = await connect(base)
        writer.write(handshake(more="Cookie: a=" + "b" * 20000 + "\r\n"))
        await greeted(reader)
        writer.close()


@pytest.mark.parametrize(
    "frames",
    [
        frame(TEXT, b"\xff"),
        frame(TEXT, b'{"type":"ping"}\xf0\x9f\x98'),
        frame(TEXT, b"\xf0\x9f", end=False) + frame(CONTINUED, b"\x98"),
        frame(TEXT, b"\xed\xa0\x80"),
    ],
)
async def test_text_that_is_no_utf_8_closes_the_socket_and_is_no_error_of_the_server(engine, frames, caplog):
    async with listening(app_on(engine)) as base:
        reader, writer = await connect(base)
        writer.write(handshake())
        await greeted(reader)
        writer.write(frames)
        opcode, data = await received(reader)
        assert (opcode, int.from_bytes(data[:2], "big")) == (8, 1007)
        assert await reader.read() == b""
        writer.close()
    assert not caplog.records


async def test_a_message_in_many_fragments_is_one_message(engine):
    data = json.dumps({"type": "ping", "text": "é😀"}, ensure_ascii=False).encode()
    async with listening(app_on(engine)) as base:
        reader, writer = await connect(base)
        writer.write(handshake())
        await greeted(reader)
        for _ in range(2):
            writer.write(frame(TEXT, b"", end=False))
            for byte in data:
                writer.write(frame(CONTINUED, bytes([byte]), end=False) + frame(CONTINUED, b"", end=False) * 15)
            writer.write(frame(PING, b"?") + frame(CONTINUED, b""))
            assert await received(reader) == (10, b"?")
            assert await received(reader) == (TEXT, b'{"type":"pong"}')
        writer.close()


@pytest.mark.parametrize("fields", ["", "Upgrade: websocket\r\n", "Connection: Upgrade\r\nUpgrade: h2c\r\n"])
async def test_a_plain_get_is_told_to_upgrade(engine, fields):
    async with listening(app_on(engine)) as base:
        reader, writer = await connect(base)
        writer.write(f"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode())
        status, answered, body = await answer(reader)
        assert (status, answered["upgrade"], answered["connection"]) == (426, "websocket", "Upgrade")
        error = json.loads(body)["error"]
        assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "upgrade_required", None)
        writer.write(b"POST /v1/ws HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        assert (await answer(reader))[0] == 405
        writer.close()


async def test_what_a_closed_socket_had_sent_already_is_not_begun():
    creates = [
        json.dumps({"type": "chat.create", "id": name, "resumable": True, "body": {"name": name}}).encode()
        for name in "abc"
    ]
    async with house() as (server, address):
        reader, writer = await connect(f"http://{address}")
        writer.write(handshake())
        await greeted(reader)
        # In one piece, so that all of it lies there before the first of it is served.
        writer.write(frame(TEXT, b"?") * (MAX_BAD_FRAMES + 1) + b"".join(frame(TEXT, create) for create in creates))
        async with asyncio.timeout(10):
            while (received_frame := await received(reader))[0] != 8:
                pass
        assert int.from_bytes(received_frame[1][:2], "big") == 1008
        await until(lambda: server.endpoint.num_sockets == 0)
        assert len(server.endpoint._store) == 0
        assert server.backend.tenants == []
        writer.close()


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, b"") * 2100,
        frame(PING, b"?" * 60) * 2100,
        frame(PONG, b"") * 2100,
        frame(TEXT, b'{"type":"pong"}') * 2100,
        frame(TEXT, b'{"type":"ping"}') * 2100,
        (frame(TEXT, b"", end=False) + frame(CONTINUED, b"", end=False) * 98 + frame(CONTINUED, b'{"type":"pong"}'))
        * 21,
    ],
    ids=["pings", "long pings", "pongs", "messages", "messages that are answered", "fragments"],
)
async def test_a_flood_of_frames_closes_the_socket(engine, flood, caplog):
    # Little comes behind the frame that is one too many: what nobody has read when a connection closes resets it.
    async with listening(app_on(engine)) as base:
        reader, writer = await connect(base)
        writer.write(handshake())
        await greeted(reader)
        writer.write(flood)
        async with asyncio.timeout(10):
            while (received_frame := await received(reader))[0] != 8:
                pass
        assert int.from_bytes(received_frame[1][:2], "big") == 1008
        assert b"frames" in received_frame[1]
        writer.transport.abort()
        other, other_writer = await connect(base)
        other_writer.write(handshake())
        await greeted(other)
        other_writer.close()
    assert not caplog.records


async def test_pongs_that_nobody_reads_do_not_pile_up():
    """Of those that cannot be written, the newest is kept, and sent when the client reads on."""
    connections = []

    class Watched(WebSocketConnection):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            connections.append(self)

    app = app_on(FakeEngine())
    async with serve(app, http=HttpProtocol, ws=Watched) as address:
        reader, writer = await connect(f"http://{address}")
        writer.write(handshake())
        await greeted(reader)
        (connection,) = connections
        connection.pause_writing()
        for i in range(1000):
            writer.write(frame(PING, b"%d" % i))
        await until(lambda: connection._pong.endswith(b"999"))
        assert connection.transport.get_write_buffer_size() == 0
        connection.resume_writing()
        assert await received(reader) == (10, b"999")
        writer.write(frame(PING, b"again"))
        assert await received(reader) == (10, b"again")
        writer.close()


async def test_what_unfinished_messages_hold_is_counted_and_given_back(engine):
    app = app_on(engine)
    async with listening(app) as base:
        reader, writer = await connect(base)
        writer.write(handshake())
        await greeted(reader)
        # A long frame of which the most has come, and then a long message of short ones.
        data = b'{"type":"ping","x":"' + b"y" * 200_000 + b'"}'
        head = bytes([0x80 | TEXT, 0x80 | 127]) + len(data).to_bytes(8, "big") + bytes(4)
        for begin, end in (
            (head + data[:-1], data[-1:]),
            (frame(TEXT, data[:100], end=False) + pieces(data[100:]), frame(CONTINUED, b"")),
        ):
            writer.write(begin)
            await until(lambda: app.server.held.total >= len(data) - FREE_BYTES - 1)
            writer.write(end)
            assert await received(reader) == (TEXT, b'{"type":"pong"}')
            assert app.server.held.total == 0
        writer.write(head + data[:-1])
        await until(lambda: app.server.held.total >= len(data) - FREE_BYTES - 1)
        writer.transport.abort()
        await until(lambda: app.server.held.total == 0)


def pieces(data: bytes) -> bytes:
    return b"".join(frame(CONTINUED, data[at : at + 125], end=False) for at in range(0, len(data), 125))
