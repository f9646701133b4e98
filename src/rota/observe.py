"""Logs: one line an entry on stderr, with every secret struck out that is known or looks like one."""

from __future__ import annotations

import logging
import re
import sys
import time

SAY_EVERY_S = 60.0
CANCELLED = (
    "CancelledError"  # asyncio's: uvicorn cancels what is under way at the end of a stop and logs it as an error
)

SECRET = re.compile(
    r"""rota_[A-Za-z0-9_-]{20,}  # a token
    |(?<=code=)[A-Za-z0-9_-]{16,}  # of a login link
    |(?<=rota_session=)[^\s;,'"]+  # a browser's session; quotes around it stay
    |(?<=rota_session=")[^\s;,'"]+
    |(?i:(?<=bearer\ )|(?<=x-auth-token:\ )|(?<=x-auth-token:))[^\s,;'"]+  # whatever was sent as a token
    """,
    re.VERBOSE,
)


class Discreet(logging.Formatter):
    """Strikes out the secrets it was told, and what by its form is a token, a login code or a session, wherever it
    stands: in a message, in an exception, in a traceback. A secret that it was not told and that has no such form looks
    like any word."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._secrets = tuple(secret for secret in secrets if secret)

    def format(self, record: logging.LogRecord) -> str:
        text = SECRET.sub("***", super().format(record))
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


class Seldom(logging.Filter):
    """Lets each warning, and each kind of traceback, through once a minute, with how often it came so far: any caller
    can provoke those of a web server, and would fill the disk with them."""

    def __init__(self) -> None:
        super().__init__()
        self._came: dict[str, int] = {}
        self._said_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING and not record.exc_info:
            return True
        if record.exc_info and record.exc_info[0] is not None and record.exc_info[0].__name__ == CANCELLED:
            record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
            record.msg, record.args, record.exc_info = "a request was cut off, since the server stops", (), None
        text, now = str(record.msg).strip() + _kind(record), time.monotonic()
        self._came[text] = self._came.get(text, 0) + 1
        if text in self._said_at and now - self._said_at[text] < SAY_EVERY_S:
            return False
        self._said_at[text] = now
        record.msg = f"{text} ({self._came[text]} so far)"
        return True


def _kind(record: logging.LogRecord) -> str:
    """Return the type of what was raised, and where: there are no more of these than lines of code."""
    raised = record.exc_info[1] if record.exc_info else None
    if raised is None:
        return ""
    where = raised.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    at = f" at {where.tb_frame.f_code.co_name}:{where.tb_lineno}" if where is not None else ""
    return f": {type(raised).__name__}{at}"


def configure(*secrets: str, verbose: bool = False) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Discreet(secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    for chatty in ("uvicorn", "websockets", "alembic", "sqlalchemy"):  # headers and parameters are in what they say
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").filters[:] = [Seldom()]
