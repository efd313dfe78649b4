"""WebSockets by hand, byte for byte: handshakes that are none, and frames that break the rules."""

import asyncio
import json

import pytest

from tests.server.test_http_protocol import answer, connect, refusal
from tests.server.world import app_on, listening

FIELDS = {
    "Host": "localhost",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "streamgen.v1",
}
TEXT, CONTINUED, PING = 1, 0, 9


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
                writer.write(frame(CONTINUED, bytes([byte]), end=False) + frame(CONTINUED, b"", end=False) * 20)
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
