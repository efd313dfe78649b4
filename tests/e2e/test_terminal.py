"""`streamgen chat` at a terminal: typed at, interrupted, left."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.server_process import serving, tiny_model


class Terminal:
    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.seen = ""
        self._master = master

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, text: str) -> str:
        """Everything that was shown up to and with `text`, since the last call."""
        while text not in self.seen:
            self.seen += os.read(self._master, 4096).decode(errors="replace")
        before, _, self.seen = self.seen.partition(text)
        return before + text


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "streamgen.cli", "chat", *arguments]
    # A session of its own, with the terminal in control of it, so that Ctrl-C is a signal.
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # noqa: PLW1509  two system calls, no lock
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait(60)
        os.close(master)


def test_a_conversation_is_answered_stopped_and_left(tmp_path: Path) -> None:
    with serving(*tiny_model(tmp_path)) as server, terminal("--url", server.url) as person:
        person.until("> ")
        person.type("/system Be brief.\n")
        person.until("with this system prompt.")
        person.until("> ")
        person.type("Hello\n")
        person.until("Hello")
        # Random weights do not end by themselves for a long time.
        person.until("\n")
        person.type("\x03")
        person.until("[stopped]")
        person.until("> ")
        person.type("/exit\n")
        assert person.process.wait(60) == 0


def test_the_end_of_input_leaves(tmp_path: Path) -> None:
    with serving(*tiny_model(tmp_path)) as server, terminal("--url", server.url) as person:
        person.until("> ")
        person.process.send_signal(signal.SIGINT)
        person.until("Ctrl-D or /exit leaves.")
        person.until("> ")
        person.type("\x04")
        assert person.process.wait(60) == 0
