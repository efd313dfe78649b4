"""The engine in somebody else's program: silent below warnings, and never on standard output."""

from __future__ import annotations

import io
import json
import logging

import pytest
import structlog

from streamgen.engine.logger import get_logger
from streamgen.observability.logging import _QUIET, configure_logging
from streamgen.runtime.fake import scripted
from tests.engine.world import GREEDY, collect, running


def as_in_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """No handler anywhere: pytest's own would take what the last resort prints."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.WARNING)
    root.manager._clear_cache()


async def test_requests_print_nothing(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    as_in_a_script(monkeypatch)
    async with running(scripted([11, 12])) as engine:
        await collect(engine.add([1], GREEDY))
    assert capfd.readouterr() == ("", "")


async def test_a_warning_goes_to_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_in_a_script(monkeypatch)
    async with running(scripted([11]), num_blocks=9):
        pass
    assert capsys.readouterr() == ("", "max_model_len_clamped wanted=128 kv_pool_holds=32\n")


def test_a_program_that_asks_gets_every_line_by_its_place(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "streamgen")
    get_logger("streamgen.engine.x").debug("request_added", request=3)
    get_logger("streamgen.engine.x").error("step_failed", exc_info=ValueError("acted out"))
    try:
        {}["acted out"]
    except KeyError:
        get_logger("streamgen.engine.x").exception("telling_failed")
    debug, failed, telling = caplog.records
    assert debug.getMessage() == "request_added request=3"
    assert (debug.levelname, debug.name, debug.funcName) == (
        *("DEBUG", "streamgen.engine.x"),
        "test_a_program_that_asks_gets_every_line_by_its_place",
    )
    assert failed.exc_info[0] is ValueError
    assert telling.exc_info[0] is KeyError


def test_a_server_gets_the_same_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loggers that were made before logging was configured follow it, as modules' own are."""
    log = get_logger("streamgen.engine.x")
    for name in ("", "uvicorn", "uvicorn.error", "uvicorn.access", *_QUIET):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "handlers", logger.handlers[:])
        monkeypatch.setattr(logger, "level", logger.level)
    stream = io.StringIO()
    configure_logging(stream=stream)
    try:
        log.debug("request_added", request=3)
        log.warning("max_model_len_clamped", wanted=4)
        log.error("step_failed", exc_info=ValueError("acted out"))
    finally:
        logging.captureWarnings(False)
    clamped, failed = map(json.loads, stream.getvalue().splitlines())
    del clamped["timestamp"]
    assert clamped == {
        "event": "max_model_len_clamped",
        "level": "warning",
        "logger": "streamgen.engine.x",
        "wanted": 4,
    }
    assert failed["exception"].endswith("ValueError: acted out")


def test_a_program_that_uses_structlog_gets_them_there() -> None:
    with structlog.testing.capture_logs() as lines:
        get_logger("streamgen.engine.x").info("x", request=3)
    assert lines == [{"event": "x", "log_level": "info", "request": 3}]
