"""The commands, as frozen dataclasses: their fields are the flags, and a field's docstring is its help."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from streamgen.config import EngineConfig, ServerConfig


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Serve a model: OpenAI's API over HTTP, a WebSocket, and a chat page.

    streamgen serve [MODEL] [--config FILE.yaml] [flags]
    """

    positionals: ClassVar[tuple[str, ...]] = ("model",)
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)


@dataclass(frozen=True, kw_only=True)
class AnswerConfig:
    temperature: float | None = None
    """Sampling temperature, 0 to 2; 0 is greedy. Default: the model's own."""
    top_p: float | None = None
    """Sample from the likeliest tokens that together have this probability. Default: the model's own."""
    max_tokens: int | None = None
    """Most tokens of an answer. Default: what fits the model's context."""


@dataclass(frozen=True, kw_only=True)
class Chat:
    """Chat in the terminal, with a running server or with a model in this process.

    streamgen chat [MODEL] [--url URL] [--config FILE.yaml] [flags]
    """

    positionals: ClassVar[tuple[str, ...]] = ("model",)
    url: str | None = None
    """A running server's address, such as http://127.0.0.1:8000. Default: load the model in this process."""
    api_key: str = ""
    """The server's key."""
    system: str = ""
    """System prompt."""
    answer: AnswerConfig = field(default_factory=AnswerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)


@dataclass(frozen=True, kw_only=True)
class Complete:
    """Go on with a text, once, and print what comes. Without a prompt, or with "-", it is read from standard input.

    streamgen complete [PROMPT] [--model MODEL] [--url URL] [--config FILE.yaml] [flags]
    """

    positionals: ClassVar[tuple[str, ...]] = ("prompt",)
    prompt: str = "-"
    """The text to go on with. Of what is read from standard input, one last line end does not count."""
    url: str | None = None
    """A running server's address, such as http://127.0.0.1:8000. Default: load the model in this process."""
    api_key: str = ""
    """The server's key."""
    answer: AnswerConfig = field(default_factory=AnswerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure a model on this machine, without a server, and print a line of JSON.

    streamgen bench latency|throughput [MODEL] [--config FILE.yaml] [flags]
    """

    positionals: ClassVar[tuple[str, ...]] = ("mode", "model")
    mode: Literal["latency", "throughput"]
    """latency: batches of equal requests, one after the other; throughput: all requests at once."""
    input_len: int = 128
    """Tokens of each prompt."""
    output_len: int = 128
    """Tokens of each answer."""
    batch_size: int = 1
    """Requests in a batch, for latency."""
    num_iters: int = 3
    """Batches that are measured, for latency; one more comes before them."""
    num_prompts: int = 64
    """Requests, for throughput."""
    engine: EngineConfig = field(default_factory=EngineConfig)


@dataclass(frozen=True, kw_only=True)
class Version:
    """Print the versions of streamgen and of what it stands on.

    streamgen version
    """

    positionals: ClassVar[tuple[str, ...]] = ()


Command = Serve | Chat | Complete | Bench | Version

COMMANDS: dict[str, type[Command]] = {
    "serve": Serve,
    "chat": Chat,
    "complete": Complete,
    "bench": Bench,
    "version": Version,
}
