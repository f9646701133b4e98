"""Logs: one line an entry on stderr, and never a token in it."""

from __future__ import annotations

import logging
import re
import sys

SECRET = re.compile(r"rota_[A-Za-z0-9_-]{20,}|(?<=code=)[A-Za-z0-9_-]{16,}")


class Discreet(logging.Formatter):
    """Strikes out what looks like a token, and the secrets it was told, wherever they turn up: in a message, in an
    exception, in a traceback."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._secrets = tuple(secret for secret in secrets if secret)

    def format(self, record: logging.LogRecord) -> str:
        text = SECRET.sub("***", super().format(record))
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def configure(*secrets: str, verbose: bool = False) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Discreet(secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    for chatty in ("uvicorn", "websockets", "alembic", "sqlalchemy"):  # headers and parameters are in what they say
        logging.getLogger(chatty).setLevel(logging.WARNING)
