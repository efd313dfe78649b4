"""The WebSocket over the real engine, whose model alone is a fake one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamgen.config import ServerConfig
from streamgen.runtime.fake import scripted
from tests.server.test_with_engine import FOREVER, saying, serving, until
from tests.server.world import TOKENIZER, listening
from tests.server.ws_fakes import Client, client

TEXT = 'Paris: *ž漢😀* \u2028 and then "some".'


@asynccontextmanager
async def talking(script: Any, **settings: Any) -> AsyncIterator[tuple[Any, Any, str]]:
    async with serving(script, **settings) as (app, engine), listening(app) as url:
        yield app, engine, url.removeprefix("http://")


def chat(text: str = "Hi", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


async def read(ws: Client) -> tuple[dict[int, str], list[dict[str, Any]]]:
    """Frames to the last one of a request, and the text of each choice."""
    frames = [await ws.receive()]
    while frames[-1]["type"].endswith(".chunk"):
        frames.append(await ws.receive())
    texts: dict[int, str] = {}
    for frame in frames[:-1]:
        for choice in frame["chunk"]["choices"]:
            piece = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            texts[choice["index"]] = texts.get(choice["index"], "") + piece
    return texts, frames


async def test_a_chat_says_over_the_socket_what_it_says_over_http() -> None:
    async with talking(saying(TEXT)) as (_, _, address), client(address) as ws:
        await ws.send(type="chat.create", id="a", body=chat())
        texts, frames = await read(ws)
        assert texts == {0: TEXT}
        assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1))
        assert all(frame["chunk"]["object"] == "chat.completion.chunk" for frame in frames[:-1])
        ends = [frame["chunk"]["choices"][0]["finish_reason"] for frame in frames[:-1]]
        assert ends == [None] * (len(ends) - 1) + ["stop"]
        assert frames[-1]["finish_reason"] == "stop"
        assert frames[-1]["usage"]["completion_tokens"] == len(TOKENIZER.encode(TEXT)) + 1


async def test_several_prompts_with_several_choices() -> None:
    async with talking(saying("abc")) as (_, _, address), client(address) as ws:
        await ws.send(type="completion.create", id="a", body={"prompt": ["x", "y"], "n": 2, "max_tokens": 2})
        texts, frames = await read(ws)
        assert texts == {0: "ab", 1: "ab", 2: "ab", 3: "ab"}
        assert (frames[-1]["type"], frames[-1]["finish_reason"]) == ("completion.done", "length")
        assert frames[-1]["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize(
    "body, param",
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}], "temperature": -1}, "temperature"),
        ({"messages": [{"role": "user", "content": "x"}], "logit_bias": {"1": 2}}, "logit_bias"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}], "model": "nope"}, "model"),
    ],
)
async def test_bodies_are_checked_as_over_http(body: dict[str, Any], param: str) -> None:
    async with talking(saying("x")) as (_, _, address), client(address) as ws:
        await ws.send(type="chat.create", id="a", body=body)
        frame = await ws.receive()
        assert (frame["type"], frame["id"], frame["error"]["param"]) == ("chat.error", "a", param)
        await ws.send(type="chat.create", id="a", body=chat())
        assert (await read(ws))[1][-1]["type"] == "chat.done"


@pytest.mark.parametrize("when", ["queue", "stream"])
async def test_C1_a_socket_that_goes_frees_its_blocks(when: str) -> None:
    async with talking(FOREVER, max_num_seqs=1) as (_, engine, address), client(address) as ws:
        await ws.send(type="chat.create", id="a", body=chat())
        await ws.receive()
        if when == "queue":
            async with client(address) as second:
                await second.send(type="chat.create", id="b", body=chat())
                await until(lambda: engine.stats().waiting == 1)
            await until(lambda: engine.stats().waiting == 0)
            assert engine.stats().running == 1
        ws.connection.transport.abort()
        await until(lambda: engine.stats().running == 0)


async def test_cancel_frees_blocks_and_leaves_the_others_alone() -> None:
    async with talking(FOREVER) as (_, engine, address), client(address) as ws:
        await ws.send(type="chat.create", id="a", body=chat())
        await ws.send(type="chat.create", id="b", body=chat())
        seen = {(await ws.receive())["id"] for _ in range(10)}
        assert seen == {"a", "b"}
        await ws.send(type="chat.cancel", id="a")
        while (frame := await ws.receive())["type"] != "chat.done":
            pass
        assert (frame["id"], frame["finish_reason"]) == ("a", "abort")
        await until(lambda: engine.stats().running == 1)
        assert (await ws.receive())["id"] == "b"
        ws.connection.transport.abort()


async def test_a_resumed_answer_is_the_whole_answer() -> None:
    tokens = TOKENIZER.encode("0123456789" * 10)
    async with talking(scripted(tokens, then=257)) as (_, _, address):
        frames: list[dict[str, Any]] = []
        session = ""
        for part in range(4):
            async with client(address) as ws:
                if part == 0:
                    session = ws.session
                    await ws.send(type="chat.create", id="a", body=chat(max_tokens=90), resumable=True)
                else:
                    await ws.send(type="chat.resume", id="a", session=session, after=len(frames))
                while len(frames) < 20 * (part + 1) or part == 3:
                    frames.append(await ws.receive())
                    if frames[-1]["type"] == "chat.done":
                        break
                ws.connection.transport.abort()
        assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1))
        text = "".join(frame["chunk"]["choices"][0]["delta"].get("content", "") for frame in frames[:-1])
        assert text == ("0123456789" * 9)


async def test_a_reader_that_never_reads_is_cut_off_and_others_are_not() -> None:
    async with talking(FOREVER, max_model_len=20_000, num_blocks=4096) as (_, engine, address):
        async with client(address, max_queue=1) as slow, client(address) as quick:
            for i in range(4):
                await slow.send(type="chat.create", id=str(i), body=chat())
            await quick.send(type="chat.create", id="q", body=chat(max_tokens=50))
            texts, _ = await read(quick)
            assert len(texts[0]) == 50
            assert engine.stats().running == 4
            slow.connection.transport.abort()
        await until(lambda: engine.stats().running == 0)


async def test_F3_every_request_of_a_socket_is_the_tenants() -> None:
    config = ServerConfig(api_key=("k",))
    async with talking(saying("x"), config=config) as (app, _, address):
        headers = {"Authorization": "Bearer k"}
        async with client(address, additional_headers=headers) as ws:
            await ws.send(type="chat.create", id="a", body=chat())
            assert (await read(ws))[1][-1]["type"] == "chat.done"
        assert app.sockets.num_sockets <= 1


async def test_draining_tells_running_requests_when_time_is_up() -> None:
    async with talking(FOREVER, max_model_len=4096) as (app, _, address), client(address) as ws:
        await ws.send(type="chat.create", id="a", body=chat())
        await ws.receive()
        drained = asyncio.ensure_future(app.drain(0))
        while (frame := await ws.receive())["type"] == "chat.chunk":
            pass
        assert frame["error"]["code"] == "draining"
        assert (await ws.closed())[0] == 1001
        await drained


async def test_C7_a_huge_body_on_one_socket_does_not_stall_another() -> None:
    async with (
        talking(FOREVER, max_model_len=8192, num_blocks=1024) as (_, _, address),
        client(address) as ws,
        client(address) as other,
    ):
        await ws.send(type="chat.create", id="a", body=chat())
        await ws.receive()
        huge = json.dumps({"type": "chat.create", "id": "b", "body": chat("word " * 1_000_000)})
        await other.connection.send(huge)
        refused = asyncio.ensure_future(other.receive())
        chunks = 0
        while not refused.done():
            await ws.receive()
            chunks += 1
        assert refused.result()["error"]["code"] == "context_length_exceeded"
        assert chunks > 10
        ws.connection.transport.abort()
