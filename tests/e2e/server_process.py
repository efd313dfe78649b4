"""`streamgen serve` as a person starts it: a process with an address, and an exit status."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.server.world import CHATML, TOKENIZER

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}
"""A config for --load-format dummy: random weights over bytes, up in the time that torch takes to import."""


class ServerProcess:
    def __init__(self, *arguments: str) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "streamgen.cli", "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        first = self._line()
        found = re.search(r"http://\S+?:(\d+)", first)
        assert found, f"no address in {first!r}; the log says:\n{self.logged()}"
        self.url, self.port = found[0], int(found[1])

    def wait_ready(self) -> str:
        """The banner, once it is printed."""
        banner = ""
        while "Ctrl-C stops" not in banner:
            banner += self._line()
        return banner

    def logged(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def stop(self) -> int:
        """The exit status after SIGTERM."""
        self.process.terminate()
        return self.process.wait(60)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self.process.stdout.close()
        self.log.close()

    def _line(self) -> str:
        line = self.process.stdout.readline()
        assert line, f"the server ended with {self.process.wait(60)}; its log says:\n{self.logged()}"
        return line


@contextmanager
def serving(*arguments: str) -> Iterator[ServerProcess]:
    """A server that is ready."""
    server = ServerProcess(*arguments)
    try:
        server.wait_ready()
        yield server
    finally:
        server.close()


def tiny_model(folder: Path) -> tuple[str, ...]:
    """Arguments for a server with random weights."""
    (folder / "config.json").write_text(json.dumps(TINY))
    TOKENIZER.backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    return (str(folder), "--load-format", "dummy", "--dtype", "float32", "--kv-cache-memory-bytes", "16777216")
