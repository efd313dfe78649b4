"""`streamgen chat`, `complete` and `bench` as a person meets them, on a source that says what it is told."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from streamgen.commands import bench, chat, complete, open_source
from streamgen.commands.options import Bench, Chat, Complete
from streamgen.config import EngineConfig
from streamgen.errors import ConfigError
from streamgen.server.kind import Kind
from streamgen.server.launch import Loaded
from tests.server.world import serving_model


class FakeSource:
    def __init__(self) -> None:
        self.bodies: list[Mapping[str, Any]] = []
        self.closed = False

    async def stream(self, _kind: Kind, body: Mapping[str, Any]) -> AsyncGenerator[str, None]:
        self.bodies.append(body)
        for piece in ("Par", "is."):
            yield piece

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> FakeSource:
    source = FakeSource()

    async def opened(*_: object) -> FakeSource:
        return source

    monkeypatch.setattr(chat, "open_source", opened)
    monkeypatch.setattr(complete, "open_source", opened)
    return source


def typed(monkeypatch: pytest.MonkeyPatch, text: str, *, terminal: bool = False) -> None:
    standard_input = io.StringIO(text)
    standard_input.isatty = lambda: terminal
    monkeypatch.setattr("sys.stdin", standard_input)


class Interrupting:
    """What to tell the person; a Ctrl-C comes at the moment at which it is looked at."""

    def __bool__(self) -> bool:
        raise KeyboardInterrupt


def test_a_ctrl_c_at_any_moment_leaves_the_conversation_where_it_is(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is meant to stop an answer may come a moment after it has ended."""
    lines: Iterator[str] = iter(["One", "Two", "/exit"])
    take = chat.Conversation.take

    def interrupted(conversation: chat.Conversation, line: str) -> tuple[chat.Next, Any]:
        return (chat.Next.READ, Interrupting()) if line == "Two" else take(conversation, line)

    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    monkeypatch.setattr(chat.Conversation, "take", interrupted)
    typed(monkeypatch, "", terminal=True)
    assert chat.chat(Chat()) == 0
    assert capsys.readouterr().out.endswith("Paris.\n\nCtrl-D or /exit leaves.\n")
    assert source.closed


@pytest.mark.parametrize("text", ["", "\n", "  \n\n"])
def test_chat_with_nothing_on_standard_input_is_refused_before_a_model_is_loaded(
    text: str, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, text)
    with pytest.raises(ConfigError, match="no message"):
        chat.chat(Chat())
    assert not source.closed


def test_chat_from_a_pipe_prints_the_answer_alone(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "What is the capital of France?\n")
    assert chat.chat(Chat(system="Be brief.")) == 0
    assert capsys.readouterr() == ("Paris.\n", "")
    assert source.bodies[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the capital of France?"},
    ]


@pytest.mark.parametrize(
    "text,prompt",
    [("The capital is\n", "The capital is"), ("The capital is\r\n", "The capital is"), ("a\n\n", "a\n"), ("a ", "a ")],
)
def test_a_model_does_not_go_on_behind_the_shells_line_end(
    text: str, prompt: str, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, text)
    assert complete.complete(Complete()) == 0
    assert source.bodies == [{"prompt": prompt}]


def test_complete_at_a_terminal_says_what_it_waits_for(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "The capital is\n", terminal=True)
    assert complete.complete(Complete()) == 0
    assert capsys.readouterr() == ("Paris.\n", "Type the text, then Ctrl-D.\n")
    typed(monkeypatch, "")
    with pytest.raises(ConfigError, match="empty"):
        complete.complete(Complete())
    complete.complete(Complete(prompt="Line\n"))
    assert source.bodies[-1] == {"prompt": "Line\n"}


async def test_a_model_without_a_tokenizer_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not, once a message was typed, for lack of a chat template."""
    stopped: list[bool] = []

    async def shutdown() -> None:
        stopped.append(True)

    async def load(*_: object, **__: object) -> Loaded:
        return Loaded(SimpleNamespace(shutdown=shutdown), serving_model(tokenizer=None, chat=None))

    monkeypatch.setattr("streamgen.server.loading.load", load)
    monkeypatch.setattr("streamgen.observability.logging.configure_logging", lambda *_: None)
    with pytest.raises(ConfigError, match="tiny has no tokenizer"):
        await open_source.open_source(None, "", EngineConfig())
    assert stopped == [True]


@pytest.mark.parametrize(
    "wrong,flag",
    [
        ({"input_len": 0}, "--input-len"),
        ({"output_len": -1}, "--output-len"),
        ({"num_iters": 0}, "--num-iters"),
        ({"batch_size": 0}, "--batch-size"),
        ({"num_prompts": 0}, "--num-prompts"),
    ],
)
def test_a_bench_that_measures_nothing_is_refused_before_a_model_is_loaded(wrong: dict[str, int], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        bench.bench(Bench(mode="latency", engine=EngineConfig(), **wrong))
