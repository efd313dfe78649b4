"""Log lines beside whoever logs: a pipe that nobody empties, lines that are dropped, the end of the process."""

import json
import os
import subprocess
import sys
import threading

import pytest

from streamgen.observability.log_writer import LogWriter


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            continue


def dropped(number):
    return f"dropped {number}\n"


def read_to_the_end(fd):
    with os.fdopen(os.dup(fd), "rb") as file:
        return file.read().decode()


def test_lines_are_written_in_order(pipe):
    reader, writer = pipe
    lines = LogWriter(writer, dropped=dropped)
    for i in range(1000):
        lines.write(f"{i}\n")
    lines.flush()
    lines.close()
    os.close(writer)
    assert read_to_the_end(reader) == "".join(f"{i}\n" for i in range(1000))


def test_a_pipe_that_nobody_empties_holds_nobody_up_and_what_is_lost_is_said(pipe):
    reader, writer = pipe
    lines = LogWriter(writer, dropped=dropped, max_bytes=100_000)
    line = "x" * 999 + "\n"
    # More than the pipe and the writer have room for: whoever waits here waits for ever.
    for _ in range(1000):
        lines.write(line)
    assert lines._num_bytes <= 100_000
    got = []
    thread = threading.Thread(target=lambda: got.append(read_to_the_end(reader)))
    thread.start()
    lines.flush()
    lines.write("after\n")
    lines.flush()
    lines.close()
    lines._thread.join()
    os.close(writer)
    thread.join()
    *written, told, last = got[0].splitlines()
    assert last == "after"
    assert all(text == line[:-1] for text in written)
    assert int(told.removeprefix("dropped ")) == 1000 - len(written)
    assert 100 <= len(written) < 1000


def test_a_pipe_that_does_not_wait_and_then_is_closed(pipe):
    reader, writer = pipe
    os.set_blocking(writer, False)
    lines = LogWriter(writer, dropped=dropped)
    for _ in range(200):
        lines.write("y" * 999 + "\n")
    size = 0
    while size < 200_000:
        size += len(os.read(reader, 2**16))
    os.close(reader)
    lines.write("to nobody\n")
    lines.flush()
    assert lines._idle()
    lines.close()


PROGRAM = """
import logging, structlog
from streamgen.observability.logging import configure_logging
configure_logging()
for i in range({number}):
    structlog.get_logger("ours").info("line", i=i, text="x" * 1000)
    logging.getLogger("theirs").warning("line %d", i)
"""


def test_a_process_whose_standard_error_nobody_reads_runs_and_ends():
    with subprocess.Popen([sys.executable, "-c", PROGRAM.format(number=2000)], stderr=subprocess.PIPE) as process:
        assert process.wait(60) == 0


def test_a_process_that_ends_writes_its_last_lines():
    code = PROGRAM.format(number=200)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["logger"] for line in lines] == ["ours", "theirs"] * 200
