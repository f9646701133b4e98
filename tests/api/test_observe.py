"""Logs: whatever goes wrong, no secret is in them."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from collections.abc import Iterator

import pytest

from rota import observe
from rota.api import tokens


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    root = logging.getLogger()
    kept = root.handlers[:], root.level
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    observe.configure("open sesame", "", verbose=True)
    yield stream
    root.handlers[:], root.level = kept
    logging.getLogger("uvicorn.error").filters.clear()


def test_the_shared_token_and_whatever_looks_like_one(log: io.StringIO) -> None:
    secret, _ = tokens.make("ann", "user", 0.0)
    logging.getLogger("x").info("open sesame %s and %s", secret, {"X-Auth-Token": secret})
    logging.getLogger("x").warning("GET /login?code=%s", "A" * 32)
    said = log.getvalue()
    assert secret not in said
    assert "open sesame" not in said
    assert "A" * 32 not in said
    assert said.count("***") == 4


@pytest.mark.parametrize(
    "line",
    [
        "cookie: a=b; rota_session=WyJhIl0.0123; c=d",
        'Cookie: rota_session="WyJhIl0.0123"; c=d',
        "{'cookie': 'rota_session=WyJhIl0.0123'}",
        "Authorization: Bearer WyJhIl0.0123",
        "{'authorization': 'bearer WyJhIl0.0123'}",
        "X-Auth-Token: WyJhIl0.0123",
        "x-auth-token:WyJhIl0.0123",
    ],
)
def test_a_session_and_whatever_was_sent_as_a_token(log: io.StringIO, line: str) -> None:
    logging.getLogger("x").warning("odd request: %s", line)
    said = log.getvalue()
    assert "WyJhIl0" not in said
    assert "0123" not in said
    assert said.count("***") == 1
    assert ("c=d" in said) == ("c=d" in line), "the rest can still be read"


def test_also_inside_a_traceback(log: io.StringIO) -> None:
    secret, _ = tokens.make("ann", "user", 0.0)
    try:
        try:
            raise ValueError(f"bad header {secret}")
        except ValueError as error:
            raise RuntimeError("open sesame") from error
    except RuntimeError:
        logging.getLogger("x").exception("it broke")
    said = log.getvalue()
    assert "Traceback" in said
    assert secret not in said
    assert "open sesame" not in said


def test_one_line_says_when_how_bad_and_where(log: io.StringIO) -> None:
    logging.getLogger("rota.test").warning("careful")
    assert " WARNING rota.test: careful\n" in log.getvalue()


def test_the_chatter_of_libraries_is_kept_down(log: io.StringIO) -> None:
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "alembic", "sqlalchemy.engine"):
        logging.getLogger(name).info("a header, a parameter")
    assert log.getvalue() == ""


def test_no_secret_is_no_reason_to_strike_out_everything(log: io.StringIO) -> None:
    logging.getLogger("x").info("plain")
    assert "plain" in log.getvalue()


def test_what_any_caller_can_provoke_is_said_once_a_minute(log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    web = logging.getLogger("uvicorn.error")
    for _ in range(1000):
        web.warning("Invalid HTTP request received.")
        web.warning("Unsupported upgrade request.")
    now += 61
    web.warning("Invalid HTTP request received.")
    for _ in range(2):
        web.error("Exception in ASGI application")
    said = log.getvalue()
    assert said.count("Invalid HTTP") == 2 and "Invalid HTTP request received. (1001 so far)" in said
    assert said.count("Unsupported") == 1
    assert said.count("Exception in") == 2, "what went wrong here is said each time"


def test_one_kind_of_traceback_is_said_once_a_minute() -> None:
    """A caller who has found a way to make one would fill the disk with them."""
    seldom = observe.Seldom()

    def raised(number: int) -> logging.LogRecord:
        try:
            if number % 2:
                raise ValueError(number)
            raise KeyError(number)
        except (ValueError, KeyError):
            return logging.LogRecord("x", logging.ERROR, __file__, 1, "Exception\n", (), sys.exc_info())

    records = [raised(number) for number in range(100)]
    passed = [each for each in records if seldom.filter(each)]
    assert [type(each.exc_info[1]) for each in passed if each.exc_info] == [KeyError, ValueError]
    assert seldom.filter(logging.LogRecord("x", logging.ERROR, __file__, 1, "no traceback", (), None))


def test_a_request_that_a_stop_cuts_off_is_no_error(log: io.StringIO) -> None:
    try:
        raise asyncio.CancelledError
    except asyncio.CancelledError as error:
        logging.getLogger("uvicorn.error").error("Exception in ASGI application\n", exc_info=error)
    (line,) = log.getvalue().splitlines()
    assert line.endswith("WARNING uvicorn.error: a request was cut off, since the server stops (1 so far)")
