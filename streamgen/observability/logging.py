"""Log lines: one JSON object a line on standard error, or coloured text where a person sits in front of it.

Code logs by `structlog.get_logger(name).info("event_name", field=value)`. What other libraries log by the standard
library's `logging` comes out the same way. JSON is pure ASCII, so that no value, whoever sent it, can start a line or
talk to a terminal; coloured text shows such characters as escapes. Secrets are replaced before either is made.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import Processor

from streamgen.observability.log_writer import LogWriter
from streamgen.observability.redaction import Redaction, escape_controls

Level = Literal["debug", "info", "warning", "error"]
_QUIET = ("asyncio", "httpcore", "httpx", "urllib3", "filelock", "huggingface_hub", "uvicorn.access", "websockets")
"""Libraries of which only warnings are wanted. uvicorn's access lines lack our fields; the server writes its own."""


def configure_logging(
    level: Level = "info", *, stream: TextIO | None = None, pretty: bool | None = None, secrets: Iterable[str] = ()
) -> None:
    """Set up all logging of the process. Meant to be called once, at its start; a later call replaces the earlier.

    `stream` is standard error by default, to which a thread of its own writes, so that whoever logs never waits for
    whoever reads; another stream is written to at once. `pretty` is by default whether the stream is a terminal.
    `secrets` never appear in a line.
    """
    background = stream is None
    stream = sys.stderr if stream is None else stream
    pretty = stream.isatty() if pretty is None else pretty
    threshold = logging.getLevelNamesMapping()[level.upper()]
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    after: list[Processor] = [Redaction(secrets), *(_text(stream) if pretty else (_to_json,))]
    handler = _background(stream, after) if background else None
    write = _direct(stream) if handler is None else handler.writer.write
    structlog.configure(
        processors=[*before, _add_name, *after],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *args: Output(write, args[0] if args else ""),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for old in root.handlers:
        if isinstance(old, _Background):
            old.flush()
            old.close()
    root.handlers[:] = [handler or logging.StreamHandler(stream)]
    root.handlers[0].setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *before],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *after],
        )
    )
    root.setLevel(threshold)
    logging.captureWarnings(True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))


def flush_logging() -> None:
    """Wait, for a moment, until all lines are written: for a process that may end without Python's own end."""
    for handler in logging.getLogger().handlers:
        handler.flush()


class Output:
    """Where structlog's lines go. Knows the name that the logger was asked for by."""

    def __init__(self, write: Callable[[str], None], name: str) -> None:
        self.name = name
        self._write = write

    def write(self, line: str) -> None:
        self._write(line + "\n")

    msg = log = debug = info = warning = warn = error = exception = critical = fatal = write


class _Background(logging.Handler):
    """The standard library's lines, on their way to the same writer. Python's end flushes and closes it."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self.writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.writer.write(self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - whoever logs a broken line goes on, as with the standard library's handlers
            self.handleError(record)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
        super().close()


def _background(stream: TextIO, after: Sequence[Processor]) -> _Background | None:
    """None for a stream that is none of the operating system's."""
    try:
        fd = stream.fileno()
    except (OSError, ValueError):
        return None
    processors: tuple[Processor, ...] = (structlog.processors.TimeStamper(fmt="iso", utc=True), *after)

    def dropped(number: int) -> str:
        event: Any = {"event": "log_lines_dropped", "level": "warning", "logger": __name__, "number": number}
        for processor in processors:
            event = processor(None, "warning", event)
        return f"{event}\n"

    return _Background(LogWriter(fd, dropped=dropped))


def _direct(stream: TextIO) -> Callable[[str], None]:
    def write(text: str) -> None:
        # A closed or broken stream must not fail the request whose line it was.
        with contextlib.suppress(OSError, ValueError):
            stream.write(text)
            stream.flush()

    return write


def _add_name(logger: Any, _method: str, event: Any) -> Any:
    if logger is not None and logger.name:
        event["logger"] = logger.name
    return event


def _to_json(_logger: Any, _method: str, event: Any) -> str:
    line = json.dumps(event, ensure_ascii=True, default=repr)
    # The one control character that JSON leaves as it is.
    return line.replace("\x7f", "\\u007f")


def _text(stream: TextIO) -> tuple[Processor, ...]:
    return (escape_controls, structlog.dev.ConsoleRenderer(colors=stream.isatty()))
