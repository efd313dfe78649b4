"""Writes log lines on a thread of its own: whoever logs never waits for whoever reads.

A pipe that nobody empties would otherwise stop the event loop, and all streams with it, at some line of a log.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

MAX_BYTES = 2**20
"""Of lines that wait to be written; what comes beyond them is dropped, and counted."""
PATIENCE = 2.0
"""Seconds that lines which wait at the end of the process get, however often they are flushed."""


class LogWriter:
    """Lines go in from any thread, and to `fd` from one. Nothing here raises, and nothing waits but `flush`.

    It writes to the descriptor and not through the stream above it, whose lock a thread that waits for a full pipe
    would keep: the interpreter then could not even end.
    """

    def __init__(self, fd: int, *, dropped: Callable[[int], str], max_bytes: int = MAX_BYTES) -> None:
        """`dropped` makes the line that says how many lines are missing where it stands."""
        self._fd = fd
        self._dropped = dropped
        self._max_bytes = max_bytes
        self._lines: deque[bytes] = deque()
        self._num_bytes = 0
        self._num_dropped = 0
        self._changed = threading.Condition()
        self._busy = False
        self._closed = False
        self._patience = PATIENCE
        self._thread = threading.Thread(target=self._run, name="streamgen-log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """`text` is one line or more, with its end."""
        data = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._closed:
                return
            if self._num_bytes + len(data) > self._max_bytes:
                self._num_dropped += 1
                return
            if self._num_dropped:
                self._put_dropped()
            self._put(data)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all lines are written, as long as there is patience with whoever reads them."""
        began = time.monotonic()
        with self._changed:
            if self._changed.wait_for(self._idle, self._patience) and self._num_dropped:
                self._put_dropped()
                self._changed.notify_all()
                self._changed.wait_for(self._idle, self._patience)
            self._patience = max(0.0, self._patience - (time.monotonic() - began))

    def close(self) -> None:
        """Take nothing more. What waits is still written, by a thread that the process does not wait for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _idle(self) -> bool:
        return not self._lines and not self._busy

    def _put_dropped(self) -> None:
        self._put(self._dropped(self._num_dropped).encode("utf-8", "backslashreplace"))
        self._num_dropped = 0

    def _put(self, data: bytes) -> None:
        self._lines.append(data)
        self._num_bytes += len(data)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._lines) or self._closed)
                if not self._lines:
                    return
                data = b"".join(self._lines)
                self._lines.clear()
                self._busy = True
            self._write(data)
            with self._changed:
                # Only now: what is being written takes its place among what waits.
                self._num_bytes -= len(data)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                # Somebody else, who has the same terminal or pipe, wants it so.
                select.select((), (self._fd,), ())
            except (OSError, ValueError):
                # A standard error that is closed or broken must not end anything else.
                return
