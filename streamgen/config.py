"""The server's configuration: frozen, and resolved once. The command line's flags are generated from these classes.

A field's docstring is its help text. Names are vLLM's where vLLM has the flag. Values out of range raise ConfigError.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from streamgen.errors import ConfigError

Dtype = Literal["auto", "float32", "bfloat16", "float16", "int8"]
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
SchedulingPolicy = Literal["fcfs", "priority"]

MANY = 2**63 - 1


def _between(config: object, low: float, high: float, *names: str) -> None:
    """Refuse values outside [low, high], NaN among them. None, which stands for a default, passes."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            bound = f"at least {low}" if value < low and high == MANY else f"between {low} and {high}"
            raise ConfigError(f"--{name.replace('_', '-')} must be {bound}; it was {value}.")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    model: str = ""
    """Folder, GGUF file or Hugging Face id; empty for the default model, SmolLM2-135M-Instruct."""
    tokenizer: str | None = None
    """Folder or file with the tokenizer, if it is not the model's own."""
    served_model_name: tuple[str, ...] = ()
    """Names that clients may use; the first is the one in answers. Default: the model's own."""
    dtype: Dtype = "auto"
    """Numeric mode of weights and activations. auto: bfloat16 on a GPU that has it, int8 on a CPU."""
    max_model_len: int | None = None
    """Most tokens of prompt and output together. Default: what the model was trained for."""
    load_format: LoadFormat = "auto"
    """How weights are read; dummy draws random ones from the config alone."""
    chat_template: str | None = None
    """File with a Jinja chat template, or the template itself, instead of the model's own."""
    generation_config: str = "auto"
    """auto: sampling defaults from the model's generation_config.json; vllm: none; else a folder that has one."""
    seed: int = 0
    """Seed of requests that bring none, together with a number of their own; and of dummy weights."""

    def __post_init__(self) -> None:
        _between(self, 1, MANY, "max_model_len")
        _between(self, -MANY - 1, MANY, "seed")
        if any(not name for name in self.served_model_name):
            raise ConfigError("--served-model-name must not be empty.")


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    block_size: int = 16
    """Tokens in a KV block."""
    enable_prefix_caching: bool = True
    """Keep the KV of finished requests and share what has the same prefix."""
    num_gpu_blocks_override: int | None = None
    """KV blocks to allocate, instead of sizing the pool by memory."""
    kv_cache_memory_bytes: int | None = None
    """Bytes of the KV pool. Default: what --gpu-memory-utilization leaves on a GPU, 512 MiB on a CPU."""
    gpu_memory_utilization: float = 0.9
    """Part of the GPU's memory that the server may take."""

    def __post_init__(self) -> None:
        _between(self, 1, 1024, "block_size")
        # One block is for padding and belongs to nobody.
        _between(self, 2, MANY, "num_gpu_blocks_override")
        _between(self, 1, MANY, "kv_cache_memory_bytes")
        _between(self, 0.01, 1.0, "gpu_memory_utilization")


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    max_num_seqs: int = 64
    """Most requests in a step."""
    max_num_batched_tokens: int | None = None
    """Most tokens in a step; longer prompts are computed in chunks. Default: 2048 on a GPU, 256 on a CPU."""
    scheduling_policy: SchedulingPolicy = "fcfs"
    """Order of waiting requests: by arrival, or by priority (lower first) and then arrival."""
    max_num_queued_reqs: int = 1024
    """Most requests that wait; more get 429."""
    max_num_queued_tokens: int = 1_000_000
    """Most prompt tokens that wait; more get 429."""

    def __post_init__(self) -> None:
        _between(self, 1, MANY, "max_num_seqs", "max_num_batched_tokens")
        _between(self, 0, MANY, "max_num_queued_reqs", "max_num_queued_tokens")
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens ({self.max_num_batched_tokens}) is less than --max-num-seqs "
                f"({self.max_num_seqs}): a step could not give each request one token."
            )


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    host: str = "127.0.0.1"
    """Address to listen on. Only this machine by default."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    api_key: tuple[str, ...] = ()
    """Keys, one of which a client must send; none for open access."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of other sites whose pages may use the API; "*" for all. The server's own page always may.
    Where only this machine is listened to, Host must be its own or one of theirs."""
    root_path: str = ""
    """Path prefix under which a proxy mounts the server."""
    public_metrics: bool = False
    """Let /metrics be read without a key."""
    max_body_bytes: int = 8 * 2**20
    """Longest request body, and longest WebSocket message."""
    stream_buffer_bytes: int = 2**20
    """Bytes a stream may hold for a reader that lags before its request is aborted."""
    sse_keep_alive_interval: float = 15.0
    """Seconds of silence after which a stream gets a heartbeat."""
    shutdown_timeout: float = 30.0
    """Seconds that running streams get to finish after SIGTERM."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log lines to write."""
    disable_access_log: bool = False
    """Write no line for each request."""

    def __post_init__(self) -> None:
        _between(self, 0, 65535, "port")
        _between(self, 1, MANY, "max_body_bytes", "stream_buffer_bytes")
        _between(self, 0.1, 86400.0, "sse_keep_alive_interval")
        _between(self, 0.0, 86400.0, "shutdown_timeout")
        if self.root_path and not self.root_path.startswith("/"):
            raise ConfigError(f"--root-path must begin with a slash; it was {self.root_path!r}.")
        if any(not key for key in self.api_key):
            raise ConfigError("--api-key must not be empty.")
        for origin in self.allowed_origins:
            scheme, _, host = origin.rstrip("/").partition("://")
            if origin not in ("*", "null") and (not scheme or not host or "/" in host):
                raise ConfigError(f"--allowed-origins takes origins such as https://example.com; it was {origin!r}.")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs."""
    enforce_eager: bool = False
    """Never capture CUDA graphs."""
    steps_in_flight: int = 2
    """Steps that may be launched before the first one's result is known."""

    def __post_init__(self) -> None:
        _between(self, 1, 8, "steps_in_flight")
