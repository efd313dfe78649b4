"""What a stream looks like on the wire, and that it says the same as an answer in one piece."""

import asyncio
import json
import re

import pytest

from streamgen.errors import QueueFullError, StepError
from streamgen.server.chunks import ChunkRenderer
from streamgen.server.kind import Kind
from streamgen.server.prepare import Prepared
from streamgen.types import Delta, FinishReason, SamplingParams, Usage
from tests.server.world import chat_body, completion_body, error_of, events, joined

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def test_one_chunk_a_token_role_with_the_first_text_end_apart(client):
    response = await client.post(CHAT, json=chat_body(stream=True))
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["cache-control"] == "no-cache"
    chunks = events(response.text)
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": "Paris"},
        {"content": " is"},
        {"content": " it."},
        {},
    ]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["id"].startswith("chatcmpl-")
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["model"] for chunk in chunks} == {"tiny"}


async def test_completion_chunks(client):
    chunks = events((await client.post(COMPLETIONS, json=completion_body(stream=True))).text)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Paris", " is", " it.", ""]
    assert chunks[0]["id"].startswith("cmpl-")
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


@pytest.mark.parametrize("path, body", [(CHAT, chat_body), (COMPLETIONS, completion_body)])
@pytest.mark.parametrize(
    "options, asked", [({"include_usage": True}, True), ({"include_usage": False}, False), ({}, False), (None, False)]
)
async def test_A8_usage_in_one_last_chunk_and_only_if_asked(client, engine, path, body, options, asked):
    response = await client.post(path, json=body(stream=True, stream_options=options))
    chunks = events(response.text)
    if asked:
        last = chunks.pop()
        prompt = len(engine.streams[0].prompt_token_ids)
        assert last["choices"] == []
        assert last["usage"] == {
            "prompt_tokens": prompt,
            "completion_tokens": 3,
            "total_tokens": prompt + 3,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


async def test_A8_absent_stream_options_and_continuous_usage(client):
    chunks = events((await client.post(CHAT, json=chat_body(stream=True))).text)
    assert all("usage" not in chunk for chunk in chunks)
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events((await client.post(CHAT, json=chat_body(stream=True, stream_options=options))).text)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3, 3]
    assert [len(chunk["choices"]) for chunk in chunks] == [1, 1, 1, 1, 0]


async def test_A8_stream_options_need_a_stream(client):
    error = error_of(await client.post(CHAT, json=chat_body(stream_options={"include_usage": True})))
    assert error["param"] == "stream_options"


@pytest.mark.parametrize("path, body", [(CHAT, chat_body), (COMPLETIONS, completion_body)])
@pytest.mark.parametrize(
    "reason, stop_reason",
    [
        (FinishReason.STOP, None),
        (FinishReason.STOP, 257),
        (FinishReason.STOP, "END"),
        (FinishReason.LENGTH, None),
        (FinishReason.ABORT, None),
    ],
)
@pytest.mark.parametrize("n", [1, 3])
async def test_A9_finish_reason_in_exactly_one_last_chunk_of_each_choice(
    client, engine, path, body, reason, stop_reason, n
):
    engine.manual = False
    engine.reason, engine.stop_reason = reason, stop_reason
    chunks = events((await client.post(path, json=body(stream=True, n=n))).text)
    for index in range(n):
        choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert all("finish_reason" in choice for choice in choices)
        assert [choice["finish_reason"] for choice in choices] == [None, None, None, reason.value]
        assert choices[-1]["stop_reason"] == stop_reason
        assert choices[-1].get("text", "") == ""
        assert choices[-1].get("delta", {}) == {}
    whole = (await client.post(path, json=body(n=n))).json()
    assert [choice["finish_reason"] for choice in whole["choices"]] == [reason.value] * n
    assert [choice["stop_reason"] for choice in whole["choices"]] == [stop_reason] * n


async def test_A9_text_and_end_that_come_together_leave_apart(client, engine):
    engine.texts = ()
    engine.manual = True
    for stream in (True, False):
        request = client.post(CHAT, json=chat_body(stream=stream))

        task = asyncio.create_task(request)
        (await engine.next_stream()).end(FinishReason.LENGTH, text="all")
        response = await task
        if stream:
            first, last = events(response.text)
            assert first["choices"][0]["delta"] == {"role": "assistant", "content": "all"}
            assert first["choices"][0]["finish_reason"] is None
            assert last["choices"][0] == {
                "index": 0,
                "delta": {},
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
        else:
            assert response.json()["choices"][0]["message"]["content"] == "all"


async def test_A9_an_answer_without_text_has_its_role_in_the_last_chunk(client, engine):
    engine.texts = ()
    (chunk,) = events((await client.post(CHAT, json=chat_body(stream=True))).text)
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunk["choices"][0]["finish_reason"] == "stop"


async def test_no_chunk_for_a_delta_without_text(client, engine):
    engine.texts = ("", "a", "", "", "b", "")
    chunks = events((await client.post(CHAT, json=chat_body(stream=True))).text)
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == ["a", "b", None]


async def test_a_failure_is_an_error_event_and_then_done_and_no_finish_reason(client, engine):
    engine.manual = True

    task = asyncio.create_task(client.post(CHAT, json=chat_body(stream=True, stream_options={"include_usage": True})))
    stream = await engine.next_stream()
    stream.say("Par")
    stream.fail(StepError("A step failed."))
    chunk, error = events((await task).text)
    assert chunk["choices"][0]["finish_reason"] is None
    assert error == {
        "error": {"message": "A step failed.", "type": "server_error", "param": None, "code": "step_failed"}
    }
    assert stream.aborted.is_set()


async def test_a_failure_of_a_whole_answer_is_its_status(client, engine):
    engine.manual = True

    task = asyncio.create_task(client.post(CHAT, json=chat_body()))
    (await engine.next_stream()).fail(StepError("A step failed."))
    response = await task
    assert response.status_code == 500
    assert error_of(response)["code"] == "step_failed"


async def test_line_separators_are_escaped_and_all_else_is_kept(client, engine):
    engine.texts = ("x", "a\u2028b\u2029c\u0085d", 'quote" back\\ \r\n\t\x00 ž 漢 😀 <script>')
    response = await client.post(CHAT, json=chat_body(stream=True))
    assert len(response.text.splitlines()) == 2 * 5
    assert not re.search("[\u2028\u2029\u0085]", response.text)
    assert joined(events(response.text)) == "".join(engine.texts)


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(client, engine):
    body = completion_body(prompt=["a", "bc"], n=2, stream=True, stream_options={"include_usage": True})
    chunks = events((await client.post(COMPLETIONS, json=body)).text)
    assert [joined(chunks, index) for index in range(4)] == ["Paris is it."] * 4
    assert chunks[-1]["usage"]["prompt_tokens"] == 3
    assert chunks[-1]["usage"]["completion_tokens"] == 2 * 2 * 3
    whole = (await client.post(COMPLETIONS, json=completion_body(prompt=["a", "bc"], n=2))).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert whole["usage"]["total_tokens"] == 3 + 12
    assert [stream.prompt_token_ids for stream in engine.streams] == [
        stream.prompt_token_ids for stream in engine.streams[:2]
    ] * 2


async def test_if_one_prompt_is_refused_none_runs(client, engine):

    engine.refusal, engine.refuse_after = QueueFullError("Too many.", retry_after=7), 2
    response = await client.post(COMPLETIONS, json=completion_body(prompt=["a", "b", "c"], stream=True))
    assert response.status_code == 429
    assert response.headers["retry-after"] == "7"
    assert error_of(response)["type"] == "rate_limit_error"
    assert all(stream.aborted.is_set() for stream in engine.streams)


@pytest.mark.parametrize("prompt, n", [("Hi", 1), ([72, 105], 2), (["a", "b"], 2), ([[1], [2, 3]], 1)])
async def test_echo_is_the_same_in_both_modes(client, prompt, n):
    body = completion_body(prompt=prompt, n=n, echo=True)
    whole = (await client.post(COMPLETIONS, json=body)).json()
    chunks = events((await client.post(COMPLETIONS, json={**body, "stream": True})).text)
    for choice in whole["choices"]:
        assert choice["text"].endswith("Paris is it.")
        assert len(choice["text"]) > len("Paris is it.")
        assert joined(chunks, choice["index"]) == choice["text"]


async def test_return_token_ids_of_a_chat(client, engine):
    engine.texts = ("a", "", "bb")
    whole = (await client.post(CHAT, json=chat_body(return_token_ids=True))).json()
    assert whole["prompt_token_ids"] == list(engine.streams[0].prompt_token_ids)
    assert whole["choices"][0]["token_ids"] == [1, 0, 2]
    chunks = events((await client.post(CHAT, json=chat_body(return_token_ids=True, stream=True))).text)
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    assert [chunk["choices"][0]["token_ids"] for chunk in chunks] == [[1], [0, 2], []]


async def test_return_token_ids_of_completions(client):
    body = completion_body(prompt=[[1, 2], [3]], return_token_ids=True)
    whole = (await client.post(COMPLETIONS, json=body)).json()
    assert [choice["prompt_token_ids"] for choice in whole["choices"]] == [[1, 2], [3]]
    chunks = events((await client.post(COMPLETIONS, json={**body, "stream": True})).text)
    for index, prompt in enumerate(([1, 2], [3])):
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert choices[0]["prompt_token_ids"] == prompt
        assert [token_id for choice in choices for token_id in choice["token_ids"]] == whole["choices"][index][
            "token_ids"
        ]


@pytest.mark.parametrize("kind", list(Kind))
def test_a_chunk_from_the_template_equals_one_from_a_dict(kind):
    prepared = Prepared(kind=kind, model='mo"del\u2028', prompts=((1,),), params=SamplingParams(n=2))
    usage = Usage(prompt_tokens=1, completion_tokens=1)
    texts = ["first", "plain", 'q"\\\n', "ž\u2028😀", "\x00text\x00"]
    fast = ChunkRenderer(prepared, answer_id="id", created=1, head=b"data: ", tail=b"\n\n")
    slow = ChunkRenderer(prepared, answer_id="id", created=1, head=b"data: ", tail=b"\n\n")
    for text in texts:
        deltas = [Delta(index=i, text=text, token_ids=(1,)) for i in (0, 1)]
        rendered = fast.render(deltas, 0, usage)
        slow._cut.clear()
        assert rendered == slow.render(deltas, 0, usage)
        assert [json.loads(chunk[6:])["choices"][0]["index"] for chunk in rendered] == [0, 1]


async def test_cached_tokens_are_in_the_usage(client, engine):

    engine.manual = True
    task = asyncio.create_task(client.post(CHAT, json=chat_body()))
    stream = await engine.next_stream()
    stream.cached_tokens = 5
    stream.end(FinishReason.STOP, text="x")
    assert (await task).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
