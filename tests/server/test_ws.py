"""The WebSocket over a real socket, with requests that say what the test tells them to."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import structlog
from starlette.routing import WebSocketRoute
from websockets.exceptions import InvalidStatus

from streamgen.config import ServerConfig
from streamgen.errors import EngineDeadError, StepError
from streamgen.server.app import create_app
from streamgen.server.auth import KeyRing
from streamgen.server.websocket import WebSocketEndpoint, WebSocketLimits
from tests.server.ws_fakes import FakeTimers, ScriptedBackend, client, key_protocol, serve

KEYS = ("good", "other")


class House:
    """An app whose WebSocket has a scripted backend, with everything that a test wants to touch."""

    def __init__(self, *, keys: tuple[str, ...] = (), limits: dict[str, Any], **config: Any) -> None:
        self.backend = ScriptedBackend()
        self.timers = FakeTimers()
        self.app = create_app(None, None, ServerConfig(api_key=keys, **config))
        self.endpoint = WebSocketEndpoint(
            self.app.server,
            backend=self.backend,
            limits=WebSocketLimits(**limits),
            call_later=self.timers.call_later,
        )
        for route in self.app.routes:
            if isinstance(route, WebSocketRoute):
                route.app = self.endpoint


@contextlib.asynccontextmanager
async def house(
    *, keys: tuple[str, ...] = (), limits: dict[str, Any] | None = None, **config: Any
) -> AsyncIterator[tuple[House, str]]:
    built = House(keys=keys, limits=limits or {}, **config)
    async with serve(built.app) as address:
        yield built, address


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something in this process has become true."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is awaited sets no event, and should not for a test's sake
            await asyncio.sleep(0)


async def test_a_request_from_create_to_done() -> None:
    async with house() as (server, address), client(address) as ws:
        assert ws.connection.subprotocol == "streamgen.v1"
        await ws.send(type="chat.create", id="a", body={"name": "a"})
        stream = await server.backend.wait_started("a")
        stream.say("Hello", " world")
        stream.finish()
        assert await ws.receive() == {"type": "chat.chunk", "id": "a", "seq": 1, "chunk": {"text": "Hello"}}
        assert await ws.receive() == {"type": "chat.chunk", "id": "a", "seq": 2, "chunk": {"text": " world"}}
        done = await ws.receive()
        assert (done["type"], done["seq"], done["finish_reason"]) == ("chat.done", 3, "stop")
        assert done["usage"]["completion_tokens"] == 2


async def test_completions_are_answered_in_their_own_name() -> None:
    async with house() as (server, address), client(address) as ws:
        server.backend.stream("a").finish("length")
        await ws.send(type="completion.create", id="a", body={"name": "a"})
        assert (await ws.receive())["type"] == "completion.done"
        await ws.send(type="completion.create", id="b", body={"refuse": 1})
        assert await ws.receive() == {
            "type": "completion.error",
            "id": "b",
            "error": {"message": "refused", "type": "invalid_request_error", "param": "refuse", "code": None},
        }


async def test_many_requests_on_one_socket_interleave() -> None:
    async with house() as (server, address), client(address) as ws:
        names = [f"r{i}" for i in range(20)]
        for name in names:
            await ws.send(type="chat.create", id=name, body={"name": name})
        for name in reversed(names):
            stream = await server.backend.wait_started(name)
            stream.say(name)
            frame = await ws.receive()
            assert (frame["id"], frame["chunk"]["text"]) == (name, name)
        for name in names:
            server.backend.stream(name).finish()
        assert {(await ws.receive())["id"] for _ in names} == set(names)


async def test_cancel_ends_in_done_with_abort() -> None:
    async with house() as (server, address), client(address) as ws:
        await ws.send(type="chat.create", id="a", body={"name": "a"})
        (await server.backend.wait_started("a")).say("x")
        await ws.receive()
        await ws.send(type="chat.cancel", id="a")
        done = await ws.receive()
        assert (done["type"], done["id"], done["finish_reason"]) == ("chat.done", "a", "abort")
        # The id is free again.
        server.backend.stream("b").finish()
        await ws.send(type="chat.create", id="a", body={"name": "b"})
        assert (await ws.receive())["finish_reason"] == "stop"


async def test_cancel_before_the_engine_has_the_request() -> None:
    async with house() as (server, address), client(address) as ws:
        server.backend.gate.clear()
        await ws.send(type="chat.create", id="a", body={"name": "a"})
        await ws.send(type="chat.cancel", id="a")
        await ws.send(type="ping")
        assert (await ws.receive())["type"] == "pong"
        server.backend.gate.set()
        assert (await ws.receive())["finish_reason"] == "abort"
        assert server.backend.stream("a").aborted.is_set()


async def test_bad_frames_leave_running_requests_alone() -> None:
    async with house() as (server, address), client(address) as ws:
        await ws.send(type="chat.create", id="a", body={"name": "a"})
        stream = await server.backend.wait_started("a")
        for bad in ("{", b"\x00", '{"type":"what"}', "[1]"):
            await ws.connection.send(bad)
            frame = await ws.receive()
            assert (frame["type"], frame["id"]) == ("chat.error", None)
        await ws.send(type="chat.create", id="a", body={"name": "b"})
        assert (await ws.receive())["id"] is None
        stream.say("still here")
        assert (await ws.receive())["chunk"]["text"] == "still here"


async def test_an_oversized_message_closes_with_1009_and_aborts() -> None:
    async with house(max_body_bytes=1000) as (server, address), client(address) as ws:
        await ws.send(type="chat.create", id="a", body={"name": "a"})
        stream = await server.backend.wait_started("a")
        await ws.send(type="chat.create", id="b", body={"name": "x" * 4000})
        assert (await ws.closed())[0] == 1009
        await stream.aborted.wait()


async def test_text_that_is_not_utf8_closes_with_1007() -> None:
    async with house() as (_, address), client(address) as ws:
        await ws.connection.send(b"\xff\xfe", text=True)
        assert (await ws.closed())[0] == 1007


async def test_a_failed_request_is_an_error_frame_and_the_socket_stays() -> None:
    async with house() as (server, address), client(address) as ws:
        server.backend.stream("a").say("x")
        server.backend.stream("a").fail(StepError("The step failed."))
        await ws.send(type="chat.create", id="a", body={"name": "a"})
        assert (await ws.receive())["type"] == "chat.chunk"
        assert (await ws.receive())["error"]["code"] == "step_failed"
        await ws.send(type="ping")
        assert (await ws.receive())["type"] == "pong"


async def test_a_dead_engine_closes_with_1011() -> None:
    async with house() as (server, address), client(address) as ws:
        server.backend.stream("a").fail(EngineDeadError("The engine died."))
        await ws.send(type="chat.create", id="a", body={"name": "a"})
        assert (await ws.receive())["error"]["code"] == "engine_dead"
        assert (await ws.closed())[0] == 1011


@pytest.mark.parametrize("abrupt", [False, True])
@pytest.mark.parametrize("when", ["preparing", "waiting", "streaming"])
async def test_C1_websocket_gone_aborts_what_is_not_resumable(when: str, abrupt: bool) -> None:
    async with house() as (server, address), client(address) as ws:
        if when == "preparing":
            server.backend.gate.clear()
        await ws.send(type="chat.create", id="a", body={"name": "a"})
        stream = server.backend.stream("a")
        if when == "preparing":
            await ws.send(type="ping")
            await ws.receive()
        else:
            await server.backend.wait_started("a")
        if when == "streaming":
            stream.say("x")
            await ws.receive()
        if abrupt:
            ws.connection.transport.abort()
        else:
            await ws.connection.close()
        await until(lambda: server.endpoint.num_sockets == 0)
        server.backend.gate.set()
        if when == "preparing":
            # Its preparation was given up with it.
            assert not server.backend.started["a"].is_set()
        else:
            async with asyncio.timeout(10):
                await stream.aborted.wait()


async def test_a_slow_reader_holds_up_nobody_else() -> None:
    async with house() as (server, address), client(address, max_queue=1) as slow, client(address) as quick:
        await slow.send(type="chat.create", id="s", body={"name": "s"})
        await quick.send(type="chat.create", id="q", body={"name": "q"})
        flood = await server.backend.wait_started("s")
        stream = await server.backend.wait_started("q")
        for _ in range(200):
            flood.say("x" * 100_000)
        for i in range(50):
            stream.say(str(i))
            assert (await quick.receive())["chunk"]["text"] == str(i)
        stream.finish()
        assert (await quick.receive())["type"] == "chat.done"
        slow.connection.transport.abort()
        async with asyncio.timeout(10):
            await flood.aborted.wait()


async def status_of(address: str, **settings: Any) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as refused:
        async with client(address, **settings):
            pass
    body = refused.value.response.body
    error: dict[str, Any] = json.loads(body)["error"] if body else {}
    return refused.value.response.status_code, error


async def test_F3_no_key_or_a_wrong_one_is_refused_before_the_upgrade() -> None:
    async with house(keys=KEYS) as (server, address):
        attempts: list[dict[str, Any]] = [
            {},
            {"additional_headers": {"Authorization": "Bearer bad"}},
            {"additional_headers": {"Authorization": "Bearer good bad"}},
            {"additional_headers": {"Authorization": "Basic good"}},
            {"additional_headers": {"Authorization": "good"}},
            {"additional_headers": {"Authorization": ""}},
            {"subprotocols": ("streamgen.v1", key_protocol("bad"))},
            {"subprotocols": ("streamgen.v1", "streamgen.key.!")},
            {"subprotocols": ("streamgen.v1", "streamgen.key.")},
            # A wrong header is not made good by a right sub-protocol.
            {
                "subprotocols": ("streamgen.v1", key_protocol("good")),
                "additional_headers": {"Authorization": "Bearer bad"},
            },
        ]
        for attempt in attempts:
            status, _ = await status_of(address, **attempt)
            assert status == 403, attempt
        assert server.endpoint.num_sockets == 0


async def test_F3_the_key_comes_in_the_header_or_as_a_sub_protocol_and_is_not_echoed() -> None:
    async with house(keys=KEYS) as (server, address):
        server.backend.stream("a").finish()
        for settings in (
            {"additional_headers": {"Authorization": "Bearer good"}},
            {"subprotocols": ("streamgen.v1", key_protocol("good"))},
            {"subprotocols": (key_protocol("good"), "streamgen.v1")},
        ):
            async with client(address, **settings) as ws:
                assert ws.connection.subprotocol == "streamgen.v1"
                await ws.send(type="chat.create", id="a", body={"name": "a"})
                assert (await ws.receive())["type"] == "chat.done"
        assert len(set(server.backend.tenants)) == 1
        assert server.backend.tenants[0] != ""


async def test_F3_a_key_revoked_mid_session_gets_no_more() -> None:
    async with house(keys=KEYS) as (server, address):
        good = ("streamgen.v1", key_protocol("good"))
        async with client(address, subprotocols=good) as ws, client(address, subprotocols=good) as bystander:
            await ws.send(type="chat.create", id="a", body={"name": "a"})
            stream = await server.backend.wait_started("a")
            server.app.server.keys = KeyRing(["other"])
            await ws.send(type="chat.create", id="b", body={"name": "b"})
            frame = await ws.receive()
            assert (frame["id"], frame["error"]["code"]) == ("b", "invalid_api_key")
            assert (await ws.closed())[0] == 1008
            async with asyncio.timeout(10):
                await stream.aborted.wait()
            # Nor does an old session let in what the new keys would refuse.
            await bystander.send(type="chat.resume", id="a", session=ws.session, after=0)
            assert (await bystander.receive())["error"]["code"] == "invalid_api_key"
            assert (await bystander.closed())[0] == 1008


async def test_F3_a_foreign_origin_is_refused_before_the_upgrade() -> None:
    async with house() as (_, address):
        assert (await status_of(address, origin="http://evil.example"))[0] == 403
        assert (await status_of(address, origin="null"))[0] == 403
        async with client(address, origin=f"http://{address}") as ws:
            await ws.send(type="ping")
            assert (await ws.receive())["type"] == "pong"


async def test_F3_handshakes_and_requests_are_in_the_access_log() -> None:
    with structlog.testing.capture_logs() as lines:
        async with house(keys=KEYS) as (server, address):
            await status_of(address, subprotocols=("streamgen.v1", key_protocol("bad")))
            server.backend.stream("a").finish()
            async with client(address, subprotocols=("streamgen.v1", key_protocol("good"))) as ws:
                await ws.send(type="chat.create", id="a", body={"name": "a"})
                await ws.receive()
                await ws.send(type="chat.create", id="b", body={"refuse": 1})
                await ws.receive()
    seen = [
        (line["method"], line["path"], line.get("status"), line.get("finish_reason"), "tenant" in line)
        for line in lines
        if line["event"] == "request"
    ]
    assert seen == [
        ("GET", "/v1/ws", 403, None, False),
        ("GET", "/v1/ws", 101, None, True),
        ("WEBSOCKET", "/v1/ws", None, "stop", True),
        ("WEBSOCKET", "/v1/ws", None, "invalid_request_error", True),
    ]
    assert "good" not in str(lines)


async def test_the_sub_protocol_is_required(caplog: pytest.LogCaptureFixture) -> None:
    async with house() as (_, address):
        for offered in (("graphql-ws",), ("streamgen.v2", "x")):
            status, error = await status_of(address, subprotocols=offered)
            assert status == 400
            assert "streamgen.v1" in error["message"]
    # A refusal is nothing that an operator has to be told as an error.
    assert caplog.records == []


async def test_draining_closes_idle_sockets_and_lets_running_requests_finish() -> None:
    async with house() as (server, address), client(address) as idle, client(address) as busy:
        await busy.send(type="chat.create", id="a", body={"name": "a"})
        stream = await server.backend.wait_started("a")
        draining = asyncio.ensure_future(server.endpoint.drain(30))
        assert (await idle.closed())[0] == 1001
        assert (await status_of(address))[0] == 503
        await busy.send(type="chat.create", id="b", body={"name": "b"})
        assert (await busy.receive())["error"]["code"] == "draining"
        stream.say("last words")
        stream.finish()
        assert (await busy.receive())["chunk"]["text"] == "last words"
        assert (await busy.receive())["finish_reason"] == "stop"
        assert (await busy.closed())[0] == 1001
        await draining


async def test_draining_cuts_off_what_does_not_finish_in_time() -> None:
    async with house() as (server, address), client(address) as ws:
        await ws.send(type="chat.create", id="a", body={"name": "a"})
        stream = await server.backend.wait_started("a")
        await server.endpoint.drain(0)
        assert (await ws.receive())["error"]["code"] == "draining"
        assert (await ws.closed())[0] == 1001
        assert stream.aborted.is_set()
