"""The engine's log lines, in a server and in somebody else's program alike."""

from __future__ import annotations

import logging
from typing import Any

import structlog


class Logger:
    """Logs by structlog where the program has configured that, as the server does, else by the standard library.

    structlog that nobody configured prints every line to standard output, which is the program's own. The standard
    library's logging then does what is expected of a library: only warnings, on standard error, unless the program
    asks for more. Which of the two it is, is decided at each line: the program may configure either at any time.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._plain = logging.getLogger(name)

    def debug(self, event: str, **fields: Any) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, event, {"exc_info": True, **fields})

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        """`exc_info` among the fields is an exception, or True for the one that is being handled."""
        if structlog.is_configured():
            # By the method's name, which every kind of logger that structlog can be given has.
            getattr(structlog.get_logger(self._name), logging.getLevelName(level).lower())(event, **fields)
        elif self._plain.isEnabledFor(level):
            exc_info = fields.pop("exc_info", None)
            shown = "".join(f" {name}={value!r}" for name, value in fields.items())
            # The line that counts is two calls up, where the event happened.
            self._plain.log(level, "%s%s", event, shown, exc_info=exc_info, stacklevel=3)


def get_logger(name: str) -> Logger:
    return Logger(name)
