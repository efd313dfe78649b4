import io
import json
import logging
import sys
import warnings

import pytest
import structlog

from streamgen.observability.logging import configure_logging

EVIL = 'a\r\n{"level":"error"}\x1b[31m\x7f\x9b2J\u2028\u202e\ud800é'


def fail(message):
    raise ValueError(message)


@pytest.fixture
def restore():
    """Logging is the process's: a test starts from nothing, and what it sets up is taken back."""
    names = ("", "uvicorn", "uvicorn.error", "uvicorn.access", "httpx")
    before = {name: (logging.getLogger(name).handlers[:], logging.getLogger(name).level) for name in names}
    configured, config, shown = structlog.is_configured(), structlog.get_config(), warnings.showwarning
    for name in names:
        logging.getLogger(name).setLevel(logging.NOTSET)
    yield
    logging.captureWarnings(False)
    warnings.showwarning = shown
    structlog.reset_defaults()
    if configured:
        structlog.configure(**config)
    for name, (handlers, level) in before.items():
        logging.getLogger(name).handlers[:] = handlers
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def lines(restore):
    stream = io.StringIO()
    configure_logging(stream=stream, secrets=("s3cret",))

    def read():
        text = stream.getvalue()
        assert text.isascii()
        assert text.endswith("\n")
        assert all(char == "\n" or char.isprintable() for char in text)
        return [json.loads(line) for line in text.splitlines()]

    return read


def test_a_line_has_time_level_logger_and_fields(lines):
    structlog.get_logger("streamgen.access").info("request", status=200, path="/x", ms=1.5, model=None)
    (line,) = lines()
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "request",
        "level": "info",
        "logger": "streamgen.access",
        "status": 200,
        "path": "/x",
        "ms": 1.5,
        "model": None,
    }


def test_other_libraries_lines_look_the_same(lines):
    logging.getLogger("uvicorn.error").info("Started %s", EVIL)
    (line,) = lines()
    assert line["event"] == f"Started {EVIL}"
    assert (line["level"], line["logger"]) == ("info", "uvicorn.error")


def test_exceptions_and_warnings_are_one_line_each(lines):
    for log in (structlog.get_logger("a"), logging.getLogger("b")):
        try:
            fail(f"Bearer s3cret {EVIL[:-2]}")
        except ValueError:
            log.exception("failed")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    own, foreign, warning = lines()
    for line in (own, foreign):
        assert line["exception"].startswith("Traceback")
        assert "s3cret" not in line["exception"]
        assert "exc_info" not in line
    assert "old" in warning["event"]


def test_levels(restore):
    stream = io.StringIO()
    configure_logging("warning", stream=stream)
    for name in ("ours", "httpx"):
        structlog.get_logger(name).info("no")
        logging.getLogger(name).info("no")
        structlog.get_logger(name).warning("yes")
        logging.getLogger(name).warning("yes")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["yes"] * 4


def test_configured_again_there_is_still_one_line_each(restore):
    first, second = io.StringIO(), io.StringIO()
    for stream in (first, second, second):
        configure_logging(stream=stream)
    structlog.get_logger().info("once")
    logging.getLogger("x").info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 2


def test_F17_nothing_that_a_client_sends_starts_a_line_or_reaches_the_terminal(lines):
    structlog.get_logger().info(
        "request", path=EVIL, **{EVIL: [EVIL, {EVIL: EVIL}]}, data=EVIL.encode("utf-8", "replace")
    )
    (line,) = lines()
    assert line["path"] == EVIL
    assert line[EVIL] == [EVIL, {EVIL: EVIL}]


def test_F17_coloured_text_shows_control_characters_as_escapes(restore):
    stream = io.StringIO()
    configure_logging(stream=stream, pretty=True)
    structlog.get_logger().info(EVIL, path=EVIL, **{EVIL: [EVIL]})
    logging.getLogger("x").error(EVIL)
    try:
        fail(EVIL)
    except ValueError:
        structlog.get_logger().exception("failed")
    text = stream.getvalue()
    assert all(char == "\n" or char.isprintable() for char in text)
    assert r"a\r\n{" in text
    assert r"\x1b[31m" in text
    starts = [line.split(" ", 1)[0] for line in text.splitlines()]
    assert sum(start.endswith("Z") for start in starts) == 3


def test_F17_keys_are_never_logged(lines):
    log = structlog.get_logger()
    log.info("a", api_key="k1", Authorization="k2", headers={"Cookie": "k3", "X-API-Key": b"k4"}, keys=["k5"])
    log.info("b", text="Authorization: Bearer k6-abc", protocol="streamgen.v1, streamgen.key.azctYWJj")
    log.info("c", url="/v1/models?api_key=k8&x=1", note="sk-proj-k9k9k9k9k9k9k9k9", path="/a/s3cret/b", raw=b"s3cret")
    log.info("d", prompt_tokens=3, tokens=[1, 2], token=None)
    logging.getLogger("x").warning("Bearer %s", "k10")
    written = json.dumps(lines())
    assert "s3cret" not in written
    assert not any(f"k{i}" in written for i in range(1, 11))
    assert "azctYWJj" not in written
    assert "/v1/models?api_key=[redacted]&x=1" in written
    assert lines()[3]["prompt_tokens"] == 3
    assert lines()[3]["tokens"] == [1, 2]


def test_long_values_are_cut_and_odd_ones_are_shown(lines):
    structlog.get_logger().info("x", text="a" * 10**6, nan=float("nan"), thing=object, items={1})
    (line,) = lines()
    assert len(line["text"]) < 10_000
    assert (line["nan"], line["thing"], line["items"]) == ("nan", "<class 'object'>", [1])


def test_a_closed_standard_error_fails_nobody(restore):
    stream = io.StringIO()
    configure_logging(stream=stream)
    stream.close()
    structlog.get_logger().info("lost")


def test_torch_is_not_imported():
    # This process may have it from other tests; the modules themselves must not ask for it.
    import subprocess

    code = "import sys, streamgen.observability.logging, streamgen.observability.metrics, streamgen.text.tokenizer, "
    code += "streamgen.text.chat; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
