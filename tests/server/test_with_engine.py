"""The same server over the real engine, whose model alone is a fake one."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest

from streamgen.config import SchedulerConfig, ServerConfig
from streamgen.engine.admission import Limits
from streamgen.engine.async_engine import AsyncEngine
from streamgen.observability.metrics import Metrics
from streamgen.runtime.fake import FakeModelRunner, scripted
from streamgen.server.app import create_app
from tests.server.test_lifecycle import leave, post
from tests.server.world import (
    TOKENIZER,
    chat_body,
    completion_body,
    error_of,
    events,
    in_process,
    joined,
    listening,
    serving_model,
)

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EOS = 257


def saying(text, *, then=EOS):
    return scripted(TOKENIZER.encode(text), then=then)


FOREVER = scripted([], then=TOKENIZER.encode("x")[0])


async def until(true):
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - the engine says to nobody that a step has come back
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(script, *, max_model_len=512, num_blocks=256, before_step=None, config=None, max_num_seqs=16):
    """An app on a running engine; afterwards the engine must be alive and hold no block."""
    runner = FakeModelRunner(script, num_blocks=num_blocks, before_step=before_step)
    limits = Limits(
        max_model_len=max_model_len,
        vocab_size=TOKENIZER.vocab_size,
        num_blocks=num_blocks,
        block_size=16,
        max_num_batched_tokens=64,
        end_token_ids=(EOS,),
    )
    engine = AsyncEngine(runner, limits, SchedulerConfig(max_num_seqs=max_num_seqs), tokenizer=TOKENIZER)
    await engine.start()
    metrics = Metrics()
    engine.metrics = metrics
    metrics.attach(engine.stats, model_name="tiny", max_model_len=max_model_len, cache={})
    app = create_app(engine, serving_model(engine.max_model_len), config or ServerConfig(), metrics=metrics)
    try:
        yield app, engine
        await until(lambda: not engine.kv.pool.num_in_use and not engine.scheduler.running)
        engine.scheduler.check()
    finally:
        await engine.shutdown()


@pytest.mark.parametrize(
    "text, fields, expected, reason",
    [
        ("Paris is it.", {}, "Paris is it.", "stop"),
        ("Paris is it.", {"max_tokens": 5}, "Paris", "length"),
        ("Paris is it.", {"stop": ["s i"]}, "Pari", "stop"),
        ("Paris is it.", {"stop": "never"}, "Paris is it.", "stop"),
        ("Paris is it.", {"stop": ["."], "include_stop_str_in_output": True}, "Paris is it.", "stop"),
        ("Paris", {"stop_token_ids": TOKENIZER.encode("i")}, "Par", "stop"),
        ("", {}, "", "stop"),
        ("ž漢😀 \u2028 a", {}, "ž漢😀 \u2028 a", "stop"),
        ("ab😀", {"max_tokens": 4}, "ab\ufffd", "length"),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
async def test_A9_both_endpoints_and_both_modes_say_the_same(text, fields, expected, reason, n):
    async with serving(saying(text)) as (app, _), in_process(app) as client:
        for path, body in ((CHAT, chat_body), (COMPLETIONS, completion_body)):
            whole = (await client.post(path, json=body(n=n, **fields))).json()
            chunks = events((await client.post(path, json=body(n=n, stream=True, **fields))).text)
            for index, choice in enumerate(whole["choices"]):
                assert (choice["message"]["content"] if "message" in choice else choice["text"]) == expected
                assert choice["finish_reason"] == reason
                assert joined(chunks, index) == expected
                ends = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
                assert ends[:-1] == [None] * (len(ends) - 1)
                assert ends[-1] == reason


async def in_both_modes(client, **fields):
    """The answer's text and its chunks' texts, which must be the same when joined."""
    answer = (await client.post(CHAT, json=chat_body(**fields))).json()
    chunks = events((await client.post(CHAT, json=chat_body(stream=True, **fields))).text)
    text = answer["choices"][0]["message"]["content"]
    assert joined(chunks) == text
    return text, chunks


@pytest.mark.parametrize("text", ["😀", "漢字", "čeština", "a😀b👨‍👩‍👧c", "é\u0301"])
async def test_A1_characters_of_several_tokens_arrive_whole(text):
    """Every byte is a token of its own."""
    async with serving(saying(text)) as (app, _), in_process(app) as client:
        said, chunks = await in_both_modes(client)
        assert said == text
        pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
        assert not any("\ufffd" in piece for piece in pieces)
        assert [piece for piece in pieces if piece] == list(text)


@pytest.mark.parametrize("text, tokens", [("😀", 1), ("😀", 3), ("ab漢", 4), ("č", 1)])
async def test_A2_an_end_inside_a_character(text, tokens):
    async with serving(saying(text)) as (app, _), in_process(app) as client:
        said, chunks = await in_both_modes(client, max_tokens=tokens)
        assert said == text.encode()[:tokens].decode(errors="ignore") + "\ufffd"
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "stop, expected",
    [("DEFG", "abc"), ("c", "ab"), (["never", "EF"], "abcD"), ("H", "abcDEFG"), (["GH", "FGH"], "abcDE"), ("a", "")],
)
async def test_A5_nothing_of_a_stop_string_is_sent(stop, expected):
    async with serving(saying("abcDEFGH and more")) as (app, _), in_process(app) as client:
        said, chunks = await in_both_modes(client, stop=stop)
        assert said == expected
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert chunks[-1]["choices"][0]["stop_reason"] in stop


@pytest.mark.parametrize("fields, reason", [({}, "stop"), ({"max_tokens": 6}, "length")])
async def test_A6_what_was_held_back_is_sent_at_the_end(fields, reason):
    async with serving(saying("xyZZxZ")) as (app, _), in_process(app) as client:
        said, chunks = await in_both_modes(client, stop=["ZZZ", "xZQ"], **fields)
        assert said == "xyZZxZ"
        assert chunks[-1]["choices"][0]["finish_reason"] == reason
        assert all(chunk["choices"][0]["delta"]["content"] for chunk in chunks[:-1])


async def test_C4_what_can_never_fit_the_pool_is_refused_and_a_short_one_served():
    """Eight blocks of 16 tokens, one of which is for padding, of a model that could do more."""
    async with serving(saying("ok"), max_model_len=500, num_blocks=8) as (app, engine), in_process(app) as client:
        assert engine.max_model_len == 112
        long, short = await asyncio.gather(
            client.post(COMPLETIONS, json=completion_body(prompt="x" * 130)),
            client.post(COMPLETIONS, json=completion_body(prompt="x" * 100)),
        )
        assert error_of(long)["code"] == "context_length_exceeded"
        assert short.json()["choices"][0]["text"] == "ok"
        assert (await client.get("/v1/models")).json()["data"][0]["max_model_len"] == 112


async def test_tokens_of_both_modes_are_the_same():
    async with serving(saying("ž漢 word")) as (app, _), in_process(app) as client:
        body = completion_body(prompt=["a", "bc"], return_token_ids=True, echo=True)
        whole = (await client.post(COMPLETIONS, json=body)).json()
        chunks = events((await client.post(COMPLETIONS, json={**body, "stream": True})).text)
        for choice in whole["choices"]:
            index = choice["index"]
            tokens = [t for chunk in chunks for c in chunk["choices"] if c["index"] == index for t in c["token_ids"]]
            assert tokens == choice["token_ids"] == [*TOKENIZER.encode("ž漢 word"), EOS]
            assert joined(chunks, index) == choice["text"]


@pytest.mark.parametrize("when", ["queued", "streaming", "whole"])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_C1_blocks_come_back_when_a_client_leaves(when, how):
    async with serving(FOREVER, max_model_len=3000, max_num_seqs=1) as (app, engine), listening(app) as base:
        body = chat_body(stream=when != "whole", ignore_eos=True)
        reader, writer = await post(base, CHAT, body)
        if when == "queued":
            await reader.readuntil(b'"x"')
            _, second = await post(base, CHAT, body)
            await until(lambda: engine.stats().waiting)
            await leave(second, how)
            await until(lambda: not engine.stats().waiting)
            assert engine.stats().running == 1
        elif when == "streaming":
            await reader.readuntil(b'"x"')
        else:
            await until(lambda: engine.stats().running)
        await leave(writer, how)
        await until(lambda: not engine.stats().running)
        async with httpx.AsyncClient(base_url=base) as client:
            assert (await client.post(CHAT, json=chat_body(max_tokens=2))).status_code == 200
            metrics = (await client.get("/metrics")).text
    assert 'finished_reason="abort"' in metrics


@pytest.mark.parametrize("stream", [True, False])
async def test_rows_that_are_not_finite_fail_their_request_alone(stream):
    def script(prompt, output):
        return -1 if prompt[-1] == 7 and len(output) == 2 else TOKENIZER.encode("ok ")[len(output) % 3]

    async with serving(script) as (app, _), in_process(app) as client:
        bad, good = await asyncio.gather(
            client.post(COMPLETIONS, json=completion_body(prompt=[7], max_tokens=9, stream=stream)),
            client.post(COMPLETIONS, json=completion_body(prompt=[8], max_tokens=9)),
        )
        assert good.json()["choices"][0]["text"] == "ok ok ok "
        error = events(bad.text)[-1]["error"] if stream else error_of(bad)
        assert error["code"] == "corrupted_logits"


async def test_a_step_that_raises_ends_its_streams_and_the_server_goes_on():
    broken = {3}

    def before_step(plan):
        if plan.step in broken:
            broken.clear()
            raise ZeroDivisionError("secret detail")

    async with serving(saying("abcdefgh"), before_step=before_step) as (app, _), in_process(app) as client:
        *chunks, error = events((await client.post(CHAT, json=chat_body(stream=True))).text)
        assert "error" in error
        assert "secret" not in str(error)
        assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
        answer = (await client.post(CHAT, json=chat_body())).json()
        assert answer["choices"][0]["message"]["content"] == "abcdefgh"


async def test_bad_requests_leave_another_stream_alone():
    """And the engine: whatever is refused never reaches it."""
    async with serving(FOREVER, max_model_len=3000) as (app, engine), listening(app) as base:
        reader, writer = await post(base, CHAT, chat_body(stream=True, max_tokens=300), ["Connection: close"])
        await reader.readuntil(b'"x"')
        bad = (
            completion_body(prompt=[2**63]),
            completion_body(prompt="x" * 5000),
            completion_body(prompt=""),
            completion_body(temperature=-1),
            completion_body(max_tokens=10**9),
            completion_body(priority=5),
            [],
        )
        async with httpx.AsyncClient(base_url=base) as client:
            for body in bad:
                assert (await client.post(COMPLETIONS, json=body)).status_code == 400
        assert engine.stats().prompt_tokens == 21
        rest = await reader.read()
        assert b"data: [DONE]" in rest
        # The first text's closing quote is read already.
        assert rest.count(b'"content":"') + 1 == 300
        writer.close()


async def test_cached_tokens_of_the_second_request_and_of_another_key():
    config = ServerConfig(api_key=("a", "b"))
    async with serving(saying("ok"), config=config) as (app, _), in_process(app) as client:
        cached = []
        for key in ("a", "a", "b"):
            body = completion_body(prompt="x" * 100)
            answer = await client.post(COMPLETIONS, json=body, headers={"Authorization": f"Bearer {key}"})
            cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, 96, 0]


async def test_metrics_of_what_was_served():
    async with serving(saying("ok")) as (app, _), in_process(app) as client:
        await client.post(CHAT, json=chat_body())
        await client.post(CHAT, json=chat_body(stream=True))
        await client.post(CHAT, json=chat_body(model="none"))
        await client.get("/" + "x" * 50)
        response = await client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        text = response.text
    assert 'http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 2.0' in text
    assert 'http_requests_total{handler="/v1/chat/completions",method="POST",status="4xx"} 1.0' in text
    assert 'http_requests_total{handler="other",method="GET",status="4xx"} 1.0' in text
    assert "xxx" not in text
    for prefix in ("streamgen:", "vllm:"):
        assert f"{prefix}generation_tokens_total" in text
        assert f"{prefix}time_to_first_token_seconds_count" in text


async def test_many_streams_at_once_each_get_their_own():
    def script(prompt, output):
        return prompt[-1] if len(output) < 20 else EOS

    async with serving(script) as (app, _), listening(app) as base:
        letters = "abcdefghijklmnopqrstuvwxyz" * 2
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=base, limits=limits) as client:
            requests = [client.post(COMPLETIONS, json=completion_body(prompt=x, stream=True)) for x in letters]
            answers = await asyncio.gather(*requests)
    for letter, answer in zip(letters, answers, strict=True):
        assert joined(events(answer.text)) == letter * 20
        assert json.loads(answer.text.splitlines()[0][6:])["object"] == "text_completion"
