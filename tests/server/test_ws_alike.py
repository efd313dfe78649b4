"""The same body over HTTP and over the WebSocket is taken by both, or refused by both for the same reason."""

import json
import threading

import httpx
import pytest

from streamgen.config import ServerConfig
from streamgen.server import ws_session
from streamgen.server.held_bytes import FREE_BYTES
from tests.server.fake_engine import FakeEngine
from tests.server.world import app_on, chat_body, completion_body, in_process, listening
from tests.server.ws_fakes import client as websocket

PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}


def message(content):
    return {"role": "user", "content": content}


def text_parts(number):
    return [{"type": "text", "text": "a"}] * number


def create(kind, data):
    """The frame around a body that is JSON already."""
    return f'{{"type":"{kind}.create","id":"a","body":{data}}}'


BODIES = {
    "plain": ("chat", chat_body()),
    "text parts": ("chat", chat_body(messages=[message(text_parts(3))])),
    "an image": ("chat", chat_body(messages=[message([{"type": "image_url", "image_url": {"url": "file:///x"}}])])),
    "a part without text": ("chat", chat_body(messages=[message([{"type": "text"}])])),
    "a part of no type": ("chat", chat_body(messages=[message([{"text": "a"}])])),
    "a part that is none": ("chat", chat_body(messages=[message(["a"])])),
    "no parts": ("chat", chat_body(messages=[message([])])),
    "no content": ("chat", chat_body(messages=[message(None)])),
    "too many content parts": ("chat", chat_body(messages=[message(text_parts(20_000))])),
    "too many messages": ("chat", chat_body(messages=[message("a")] * 5000)),
    "no messages": ("chat", chat_body(messages=[])),
    "messages are missing": ("chat", {"model": "tiny"}),
    "an unknown role": ("chat", chat_body(messages=[{"role": "robot", "content": "a"}])),
    "a template": ("chat", chat_body(chat_template="{{ 1 }}")),
    "tools": ("chat", chat_body(tools=[{"type": "function", "function": {"name": "f"}}])),
    "millions of lists": ("chat", chat_body(unknown=[[]] * 300_000)),
    "millions of objects": ("chat", chat_body(messages=[{}] * 300_000)),
    "millions of strings": ("completion", completion_body(prompt=[""] * 300_000)),
    "millions of integers": ("completion", completion_body(prompt=[1] * 2_100_000)),
    "marks in a text": ("completion", completion_body(prompt='"[{:,' * 100_000)),
    "an unknown model": ("chat", chat_body(model="no")),
    "an unknown field": ("chat", chat_body(unknown={"a": [1]})),
    "n of 0": ("completion", completion_body(n=0)),
    "a float": ("completion", completion_body(max_tokens=1.5)),
    "a stop that is empty": ("completion", completion_body(stop=[""])),
    "an id too many": ("completion", completion_body(prompt=[10**6])),
    "a long prompt": ("completion", completion_body(prompt="a" * 100_000)),
    "the longest body": ("completion", completion_body(unknown="y" * (8 * 2**20 - 48))),
    "a body that is too long": ("completion", completion_body(unknown="y" * (8 * 2**20 - 47))),
}


@pytest.mark.parametrize("kind, body", BODIES.values(), ids=BODIES)
async def test_a_body_is_taken_or_refused_alike(engine, kind, body):
    data = json.dumps(body)
    app = app_on(engine)
    async with (
        listening(app) as base,
        in_process(app) as http,
        websocket(base.removeprefix("http://"), max_size=None) as ws,
    ):
        response = await http.post(PATHS[kind], content=data)
        await ws.connection.send(create(kind, data))
        frames = [await ws.receive()]
        while frames[-1]["type"] == f"{kind}.chunk":
            frames.append(await ws.receive())
        last = frames[-1]
        assert last["id"] == "a"
        assert last["type"] == f"{kind}.{'done' if response.status_code == 200 else 'error'}"
        assert last.get("error") == response.json().get("error")
        assert len(engine.streams) == (2 if response.status_code == 200 else 0)


async def test_a_body_that_is_nested_too_deeply_is_refused_by_both(engine):
    data = json.dumps(completion_body())[:-1] + ',"unknown":' + "[" * 100_000 + "]" * 100_000 + "}"
    async with (
        listening(app_on(engine)) as base,
        httpx.AsyncClient(base_url=base) as http,
        websocket(base.removeprefix("http://")) as ws,
    ):
        assert (await http.post(PATHS["completion"], content=data)).status_code == 400
        await ws.connection.send(create("completion", data))
        assert (await ws.receive())["error"]["type"] == "invalid_request_error"
    assert engine.streams == []


async def test_bodies_count_for_all_connections_together_and_are_refused_alike(engine):
    app = app_on(engine)
    app.server.held.limit = 2 * FREE_BYTES
    async with listening(app) as base, websocket(base.removeprefix("http://")) as ws:
        with app.server.held.open() as hold:
            hold.resize(3 * FREE_BYTES)
            body = completion_body(unknown="y" * 2 * FREE_BYTES)
            async with httpx.AsyncClient(base_url=base) as http:
                response = await http.post(PATHS["completion"], json=body)
            assert response.status_code == 429
            # Not that it is whole can be waited for here, and who sends it may try it again.
            await ws.send(type="completion.create", id="a", body=body)
            assert (await ws.closed())[0] == 1013
    assert engine.streams == []


async def test_C7_a_long_message_is_taken_apart_beside_the_loop(monkeypatch):
    threads = []

    def decode_frame(*args):
        threads.append(threading.get_ident())
        return original(*args)

    original = ws_session.decode_frame
    monkeypatch.setattr(ws_session, "decode_frame", decode_frame)
    async with (
        listening(app_on(FakeEngine(), ServerConfig())) as base,
        websocket(base.removeprefix("http://")) as ws,
    ):
        for size in (10, 300_000):
            await ws.send(type="ping", unknown="x" * size)
            assert (await ws.receive())["type"] == "pong"
    assert threads[0] == threading.get_ident()
    assert threads[1] != threading.get_ident()
