"""The requests that well-known benchmark clients send, and what each of them does with the answer."""

import json

from tests.server.world import chat_body, completion_body

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def data_lines(text):
    return [line.removeprefix("data: ") for line in text.splitlines() if line.strip()]


async def test_vllm_bench_serve(client, engine):
    """Takes the model's name from the list, the first token from the first chunk with choices, and the counts from
    the chunk without.
    """
    model = (await client.get("/v1/models")).json()["data"][0]["id"]
    common = {"model": model, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    completion = {
        "prompt": "Hi",
        "repetition_penalty": 1.0,
        "max_tokens": 3,
        "logprobs": None,
        "temperature": 0.0,
        **common,
    }
    content = [{"type": "text", "text": "Hi"}]
    chat = {"messages": [{"role": "user", "content": content}], "max_completion_tokens": 3, **common}
    for path, body in ((COMPLETIONS, completion), (CHAT, chat)):
        response = await client.post(path, json=body, headers={"x-request-id": "benchmark-serving-0"})
        assert response.headers["x-request-id"] == "benchmark-serving-0"
        *chunks, done = data_lines(response.text)
        assert done == "[DONE]"
        chunks = [json.loads(chunk) for chunk in chunks]
        usages = [chunk["usage"] for chunk in chunks if not chunk["choices"]]
        assert [usage["completion_tokens"] for usage in usages] == [3]
        first = next(chunk["choices"][0] for chunk in chunks if chunk["choices"])
        assert first.get("text") or first["delta"]["content"]
        assert engine.streams[-1].params.ignore_eos


async def test_sglang_bench_serving(client):
    """Parses every line that is not blank, and takes `choices[0]` of each."""
    common = {"model": "tiny", "temperature": 0.0, "best_of": 1, "stream": True, "ignore_eos": True}
    completion = {"prompt": "Hi", "max_tokens": 3, **common}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 3, **common}
    for path, body in ((COMPLETIONS, completion), (CHAT, chat)):
        text = ""
        for line in data_lines((await client.post(path, json=body)).text):
            if line == "[DONE]":
                continue
            choice = json.loads(line)["choices"][0]
            text += choice["text"] if path == COMPLETIONS else choice["delta"].get("content", "")
        assert text == "Paris is it."


async def test_guidellm(client):
    assert (await client.get("/health")).is_success
    assert (await client.get("/v1/models")).json()["data"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    common = {"stream": True, "stream_options": options, "stop": None, "ignore_eos": True}
    for path, body in (
        (COMPLETIONS, completion_body(max_tokens=3, **common)),
        (CHAT, chat_body(max_completion_tokens=3, **common)),
    ):
        lines = (await client.post(path, json=body)).text.split("\n")
        assert lines.count("data: [DONE]") == 1
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3, 3]


async def test_aiperf(client):
    body = chat_body(max_completion_tokens=3, stream=True)
    body["messages"][0]["name"] = None
    sent = {"Accept": "text/event-stream", "X-Request-ID": "a-1", "X-Correlation-ID": "c-1"}
    response = await client.post(CHAT, json=body, headers=sent)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert data_lines(response.text)[-1] == "[DONE]"


async def test_a_profiler_that_is_not_there_is_a_404(client):
    assert (await client.post("/start_profile")).status_code == 404
