"""Requests that outlive their socket."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.server.test_ws import KEYS, House, house, until
from tests.server.ws_fakes import Client, ScriptedStream, client, key_protocol


async def begin(server: House, ws: Client, name: str = "a", said: int = 2) -> ScriptedStream:
    """Create a resumable request and read its first chunks."""
    await ws.send(type="chat.create", id=name, body={"name": name}, resumable=True)
    stream = await server.backend.wait_started(name)
    stream.say(*(str(i) for i in range(1, said + 1)))
    for i in range(1, said + 1):
        assert (await ws.receive())["seq"] == i
    return stream


async def gone(server: House, ws: Client) -> None:
    before = server.endpoint.num_sockets
    ws.connection.transport.abort()
    await until(lambda: server.endpoint.num_sockets < before)


async def resume(ws: Client, session: str, after: int, name: str = "a") -> None:
    await ws.send(type="chat.resume", id=name, session=session, after=after)


async def test_a_resumed_request_misses_nothing_and_repeats_nothing() -> None:
    async with house() as (server, address):
        async with client(address) as first:
            stream = await begin(server, first, said=3)
            await gone(server, first)
        stream.say("4", "5")
        async with client(address) as second:
            # Frame 3 was sent, but never arrived as far as this client is concerned.
            await resume(second, first.session, after=2)
            stream.say("6")
            stream.finish()
            frames = [await second.receive() for _ in range(5)]
            assert [frame["seq"] for frame in frames] == [3, 4, 5, 6, 7]
            assert [frame["chunk"]["text"] for frame in frames[:4]] == ["3", "4", "5", "6"]
            assert frames[4]["type"] == "chat.done"
        assert not stream.aborted.is_set()


async def test_an_answer_that_ended_meanwhile_is_replayed_to_its_end() -> None:
    async with house() as (server, address):
        async with client(address) as first:
            stream = await begin(server, first)
            await gone(server, first)
        stream.say("3")
        stream.finish()
        for after in (2, 0, 4):
            async with client(address) as ws:
                await resume(ws, first.session, after)
                seqs = [(await ws.receive())["seq"] for _ in range(4 - after)]
                assert seqs == list(range(after + 1, 5))
                # Its id is free once it has been read to the end.
                await ws.send(type="ping")
                assert (await ws.receive())["type"] == "pong"


async def test_without_a_reader_it_is_kept_for_the_grace_time_only() -> None:
    async with house(limits={"resume_grace": 60}) as (server, address):
        async with client(address) as first:
            stream = await begin(server, first)
            await gone(server, first)
        server.timers.advance(59)
        assert not stream.aborted.is_set()
        server.timers.advance(2)
        assert stream.aborted.is_set()
        async with client(address) as ws:
            await resume(ws, first.session, 2)
            assert (await ws.receive())["error"]["code"] == "not_found"


async def test_a_reader_stops_the_clock() -> None:
    async with house(limits={"resume_grace": 60}) as (server, address):
        async with client(address) as first:
            stream = await begin(server, first)
            await gone(server, first)
        async with client(address) as ws:
            await resume(ws, first.session, 2)
            stream.say("3")
            await ws.receive()
            server.timers.advance(1000)
            stream.say("4")
            assert (await ws.receive())["seq"] == 4


async def test_what_is_not_resumable_cannot_be_resumed() -> None:
    async with house() as (server, address):
        async with client(address) as first:
            await first.send(type="chat.create", id="a", body={"name": "a"}, resumable=False)
            await server.backend.wait_started("a")
            await gone(server, first)
        async with client(address) as ws:
            await resume(ws, first.session, 0)
            assert (await ws.receive())["error"]["code"] == "not_found"


async def test_it_is_bound_to_session_and_key() -> None:
    async with house(keys=KEYS) as (server, address):
        good: dict[str, Any] = {"subprotocols": ("streamgen.v1", key_protocol("good"))}
        other: dict[str, Any] = {"subprotocols": ("streamgen.v1", key_protocol("other"))}
        async with client(address, **good) as first:
            stream = await begin(server, first)
            await gone(server, first)
        async with client(address, **other) as thief:
            await resume(thief, first.session, 0)
            assert (await thief.receive())["error"]["code"] == "not_found"
        async with client(address, **good) as ws:
            await resume(ws, ws.session, 0)
            assert (await ws.receive())["error"]["code"] == "not_found"
            await resume(ws, first.session, 2)
            stream.say("3")
            assert (await ws.receive())["seq"] == 3


async def test_a_new_reader_replaces_the_old_one() -> None:
    async with house() as (server, address), client(address) as first, client(address) as second:
        stream = await begin(server, first)
        await resume(second, first.session, 1)
        assert (await second.receive())["seq"] == 2
        farewell = await first.receive()
        assert (farewell["id"], farewell["error"]["code"]) == ("a", "resumed_elsewhere")
        stream.say("3")
        assert (await second.receive())["seq"] == 3
        # The old socket's end does not concern the request any more, and its id is free there.
        await gone(server, first)
        stream.say("4")
        assert (await second.receive())["seq"] == 4
        assert not stream.aborted.is_set()


async def test_a_new_reader_replaces_one_that_is_stuck() -> None:
    async with house() as (server, address), client(address, max_queue=1) as first, client(address) as second:
        stream = await begin(server, first)
        # More than the sockets' buffers hold, so that the relay waits in the middle of sending.
        stream.say(*["x" * 50_000] * 400)
        await resume(second, first.session, 2)
        frame = await second.receive()
        # Whatever fell out of the replay buffer while the first reader lagged is named.
        assert frame["error"]["code"] == "replay_gone" or frame["seq"] == 3
        first.connection.transport.abort()


async def test_overflow_without_a_reader_aborts() -> None:
    async with house(stream_buffer_bytes=2000) as (server, address):
        async with client(address) as first:
            stream = await begin(server, first)
            await gone(server, first)
        stream.say(*["x" * 100] * 40)
        async with asyncio.timeout(10):
            await stream.aborted.wait()
        async with client(address) as ws:
            await resume(ws, first.session, 2)
            assert (await ws.receive())["error"]["code"] == "replay_gone"
            await resume(ws, first.session, 2)
            assert (await ws.receive())["error"]["code"] == "not_found"


async def test_after_must_not_be_ahead() -> None:
    async with house() as (server, address):
        async with client(address) as first:
            stream = await begin(server, first)
            await gone(server, first)
        async with client(address) as ws:
            await resume(ws, first.session, 3)
            assert (await ws.receive())["error"]["param"] == "after"
            await resume(ws, first.session, 2)
            stream.say("3")
            assert (await ws.receive())["seq"] == 3


async def test_cancel_after_resume() -> None:
    async with house() as (server, address):
        async with client(address) as first:
            stream = await begin(server, first)
            await gone(server, first)
        async with client(address) as ws:
            await resume(ws, first.session, 2)
            await ws.send(type="chat.cancel", id="a")
            assert (await ws.receive())["finish_reason"] == "abort"
            assert stream.aborted.is_set()


async def test_the_socket_may_go_while_the_request_is_prepared() -> None:
    async with house() as (server, address):
        server.backend.gate.clear()
        async with client(address) as first:
            await first.send(type="chat.create", id="a", body={"name": "a"}, resumable=True)
            await first.send(type="ping")
            await first.receive()
            await gone(server, first)
        async with client(address) as ws:
            await resume(ws, first.session, 0)
            server.backend.gate.set()
            (await server.backend.wait_started("a")).say("1")
            assert (await ws.receive())["seq"] == 1


async def test_their_number_is_bounded_and_those_that_nobody_reads_go_first() -> None:
    async with house(limits={"max_resumable": 2}) as (server, address):
        async with client(address) as first:
            lost = await begin(server, first, "lost")
            await gone(server, first)
        async with client(address) as ws:
            read = await begin(server, ws, "read")
            await begin(server, ws, "new")
            assert lost.aborted.is_set()
            await begin(server, ws, "newer")
            # One that is read goes on, but ends with its socket.
            read.say("3")
            assert (await ws.receive())["seq"] == 3
            await gone(server, ws)
        assert read.aborted.is_set()


async def test_a_drained_server_keeps_nothing() -> None:
    async with house() as (server, address):
        async with client(address) as first:
            stream = await begin(server, first)
            await gone(server, first)
        await server.endpoint.drain(0)
        assert stream.aborted.is_set()


async def test_what_all_requests_keep_is_bounded_while_they_grow() -> None:
    async with house(limits={"max_resumable_bytes": 10_000}) as (server, address):
        async with client(address) as ws:
            streams = [await begin(server, ws, name, said=1) for name in "abc"]
            await gone(server, ws)
        shares = server.endpoint._store.shares
        for _ in range(10):
            for stream in streams:
                stream.say("x" * 500)
                await until(lambda stream=stream: not stream._chunks or stream.aborted.is_set())
                assert shares.num_bytes <= 10_000
                shares.check()
        assert [stream.aborted.is_set() for stream in streams] == [True, True, False]


async def test_another_tenants_request_within_its_share_is_not_touched() -> None:
    async with house(keys=KEYS, limits={"max_resumable_bytes": 10_000}) as (server, address):
        quiet_key, greedy_key = (("streamgen.v1", key_protocol(key)) for key in KEYS)
        async with client(address, subprotocols=quiet_key) as quiet:
            first = await begin(server, quiet, "quiet")
            await gone(server, quiet)
        async with client(address, subprotocols=greedy_key) as greedy:
            streams = [await begin(server, greedy, name) for name in "ab"]
            await gone(server, greedy)
        for stream in streams:
            for _ in range(12):
                stream.say("x" * 500)
            await until(lambda stream=stream: not stream._chunks)
        assert [stream.aborted.is_set() for stream in (first, *streams)] == [False, True, False]
        async with client(address, subprotocols=quiet_key) as again:
            await resume(again, quiet.session, 1, "quiet")
            assert (await again.receive())["seq"] == 2


async def test_a_request_that_is_read_goes_on_when_it_is_kept_no_longer() -> None:
    async with (
        house(limits={"max_resumable_bytes": 2_000}) as (server, address),
        client(address) as ws,
    ):
        stream = await begin(server, ws)
        for seq in range(3, 20):
            stream.say("x" * 500)
            assert (await ws.receive())["seq"] == seq
        assert server.endpoint._store.shares.num_bytes == 0
        assert len(server.endpoint._store) == 0
        stream.finish()
        assert (await ws.receive())["type"] == "chat.done"
        assert not stream.aborted.is_set()
