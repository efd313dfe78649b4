"""The process: it starts in order, refuses clearly, and ends as it is told."""

import json
import signal
import socket
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from streamgen.server.listen import listen
from tests.e2e.server_process import ServerProcess, serving, tiny_model

LONG = {"prompt": [1, 2, 3], "max_tokens": 2000, "ignore_eos": True, "temperature": 0, "stream": True}


WAIT = 60
"""Seconds after which a test gives up: the machine may be busy with others."""


def stream(server: ServerProcess, body: dict) -> AbstractContextManager[httpx.Response]:
    return httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=WAIT)


def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """A command, with `text` coming through a pipe."""
    command = [sys.executable, "-m", "streamgen.cli", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=WAIT, check=False)


def test_G6_a_port_in_use_is_told_at_once_and_in_one_line() -> None:
    sockets = listen("127.0.0.1", 0)
    try:
        port = sockets[0].getsockname()[1]
        started = time.monotonic()
        done = run("serve", "--port", str(port))
        seconds = time.monotonic() - started
    finally:
        sockets[0].close()
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"streamgen: Port {port} of 127.0.0.1 is in use already. Choose another one with --port.\n"
    assert seconds < 2


def test_G6_a_server_starts_again_on_its_port_at_once(tmp_path: Path) -> None:
    """Also while a connection of the first one is still in TIME_WAIT: the server closes this one first."""
    arguments = tiny_model(tmp_path)
    with serving(*arguments) as first, socket.create_connection(("127.0.0.1", first.port)) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        assert first.stop() == 0
        second = ServerProcess(*arguments, "--port", str(first.port))
        second.close()
        assert second.port == first.port


def test_health_answers_before_the_model_is_there(tmp_path: Path) -> None:
    server = ServerProcess(*tiny_model(tmp_path))
    try:
        assert httpx.get(f"{server.url}/health", timeout=WAIT).status_code == 200
        server.wait_ready()
        assert httpx.get(f"{server.url}/ready", timeout=WAIT).status_code == 200
    finally:
        server.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_stream_finish_and_exits_with_0(tmp_path: Path, number: signal.Signals) -> None:
    with serving(*tiny_model(tmp_path)) as server:
        with stream(server, {**LONG, "max_tokens": 64}) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(number)
            rest = list(lines)
        assert rest[-2:] == ["data: [DONE]", ""]
        assert '"finish_reason":"length"' in "".join(rest)
        assert server.process.wait(WAIT) == 0
        said = server.process.stdout.read()
        assert "Stopping: 1 response is still being sent, for up to 30 s." in said
        assert said.endswith("Stopped.\n")


def test_a_stream_that_outlasts_the_grace_time_is_ended_with_an_error(tmp_path: Path) -> None:
    with serving(*tiny_model(tmp_path), "--shutdown-timeout", "0") as server:
        with stream(server, LONG) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.terminate()
            rest = list(lines)
        assert rest[-2:] == ["data: [DONE]", ""]
        assert json.loads(rest[-4].removeprefix("data: "))["error"]["code"] == "draining"
        assert server.process.wait(WAIT) == 0


def test_a_second_signal_ends_the_process_where_it_stands(tmp_path: Path) -> None:
    with serving(*tiny_model(tmp_path)) as server, stream(server, LONG) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.terminate()
        while httpx.get(f"{server.url}/ready", timeout=WAIT).status_code == 200:
            pass
        server.process.terminate()
        assert server.process.wait(WAIT) == 128 + signal.SIGTERM


@pytest.mark.parametrize("flags, open_to_all", [((), True), (("--api-key", "k"), False)])
def test_a_server_that_anyone_may_use_is_said_to_be_one(
    tmp_path: Path, flags: tuple[str, ...], *, open_to_all: bool
) -> None:
    done = run("serve", str(tmp_path / "nothing"), "--port", "0", "--host", "0.0.0.0", *flags)
    assert ("Whoever reaches 0.0.0.0 may use it" in done.stderr) == open_to_all


def test_a_model_that_is_not_there_is_one_line_and_1(tmp_path: Path) -> None:
    done = run("serve", str(tmp_path / "nothing"), "--port", "0")
    assert done.returncode == 1
    assert "nothing" in done.stderr
    assert "Traceback" not in done.stderr


def test_bench_prints_one_line_of_json(tmp_path: Path) -> None:
    done = run("bench", "latency", *tiny_model(tmp_path), "--input-len=8", "--output-len=4", "--num-iters=1")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["requests"], report["output_len"]) == (1, 4)
    assert report["output_tokens_per_second"] > 0


def test_complete_and_chat_run_a_model_in_process(tmp_path: Path) -> None:
    model, *flags = tiny_model(tmp_path)
    done = run("complete", "ab", "--model", model, *flags, "--max-tokens=8", "--temperature=0")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 1
    done = run("chat", model, *flags, "--max-tokens=8", "--temperature=0", text="Hi")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 1
