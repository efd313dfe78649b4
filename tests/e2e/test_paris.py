"""The default model, on this machine, answers every kind of client."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import websockets.sync.client

from tests.e2e.server_process import ServerProcess, serving

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
BODY = {"model": "SmolLM2-135M-Instruct", "messages": QUESTION, "max_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openai_sdk(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**BODY)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 1


def test_openai_sdk_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.create(**BODY, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    assert chunks[-1].usage.completion_tokens == sum(1 for chunk in chunks if chunk.choices)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"


def test_openai_sdk_says_the_same_streamed_or_not(client: openai.OpenAI) -> None:
    body = {"model": BODY["model"], "prompt": "The three primary colours are", "max_tokens": 16, "temperature": 0}
    with client.completions.create(**body, stream=True) as stream:
        streamed = "".join(chunk.choices[0].text for chunk in stream)
    assert streamed == client.completions.create(**body).choices[0].text != ""


def test_openai_sdk_lists_the_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["SmolLM2-135M-Instruct"]


def test_curl(server: ServerProcess) -> None:
    command = ["curl", "-N", "-sS", f"{server.url}/v1/chat/completions", "-H", "Content-Type: application/json"]
    body = json.dumps({**BODY, "stream": True})
    done = subprocess.run([*command, "-d", body], capture_output=True, text=True, timeout=120, check=True)
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line]
    assert events.pop() == "[DONE]"
    text = "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events)
    assert "Paris" in text


def test_websocket(server: ServerProcess) -> None:
    url = f"ws://127.0.0.1:{server.port}/v1/ws"
    with websockets.sync.client.connect(url, subprotocols=["streamgen.v1"], open_timeout=30) as socket:
        assert json.loads(socket.recv(30))["type"] == "session.created"
        socket.send(json.dumps({"type": "chat.create", "id": "1", "body": BODY}))
        text = ""
        while (frame := json.loads(socket.recv(120)))["type"] == "chat.chunk":
            text += frame["chunk"]["choices"][0]["delta"].get("content", "")
    assert frame["type"] == "chat.done"
    assert frame["finish_reason"] == "stop"
    assert "Paris" in text


def test_the_page_is_served(server: ServerProcess) -> None:
    page = httpx.get(server.url)
    assert page.status_code == 200
    assert "<html" in page.text
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]


@pytest.mark.parametrize("stdin,arguments", [(QUESTION[0]["content"], ()), (None, ("complete",))])
def test_the_commands_talk_to_it(server: ServerProcess, stdin: str | None, arguments: tuple[str, ...]) -> None:
    """`chat` with a question from a pipe, and `complete` with a prompt as its argument."""
    command = [*arguments, "The capital of France is"] if arguments else ["chat"]
    done = subprocess.run(
        [sys.executable, "-m", "streamgen.cli", *command, "--url", server.url, "--temperature=0", "--max-tokens=24"],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_metrics_count_what_was_generated(server: ServerProcess, client: openai.OpenAI) -> None:
    client.chat.completions.create(**BODY)
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    totals = [line for line in lines if line.startswith("vllm:generation_tokens_total{")]
    assert totals
    assert float(totals[0].split()[-1]) > 0


def readme_examples() -> list[tuple[str, str]]:
    """Language and text of each example that can be run as it stands."""
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    return [(match[1], match[2]) for match in re.finditer(r"```(bash|python)\n(.*?)```", text, flags=re.DOTALL)]


@pytest.mark.parametrize("language,example", readme_examples(), ids=["curl", "sdk", "websocket", "offline"])
def test_the_readmes_examples_run(server: ServerProcess, language: str, example: str) -> None:
    example = example.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    command = [sys.executable, "-c", example] if language == "python" else ["bash", "-euc", example]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 20
