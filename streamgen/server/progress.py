"""Shows how far loading has come: a bar on a terminal, a log line a stage elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

import structlog

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

log = structlog.get_logger("streamgen.startup")


class LoadProgress:
    """Called, from whatever thread loads, with (what is done, how much of it is done, how much there is)."""

    def __init__(self, *, terminal: bool | None = None) -> None:
        """Args:
        terminal: draw bars; by default if standard error is a terminal.
        """
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._bars: Progress | None = None
        self._stage: tuple[str, TaskID | None] | None = None

    def __enter__(self) -> Self:
        if self._terminal:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bars = Progress(
                TextColumn("{task.description:<24}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            if error is None:
                self._complete()
            self._bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._stage is None or self._stage[0] != what:
            task = None
            if self._bars is not None:
                task = self._bars.add_task(what, total=total)
            else:
                log.info("loading", stage=what)
            self._complete()
            self._stage = (what, task)
        if self._bars is not None and (task := self._stage[1]) is not None:
            self._bars.update(task, completed=done, total=total)

    def _complete(self) -> None:
        """Whoever begins the next stage may not have said that the one before has ended."""
        if self._bars is not None and self._stage is not None and (task := self._stage[1]) is not None:
            self._bars.update(task, completed=self._bars.tasks[task].total)
