"""Say of a record that is there but cannot be used which file it is and what follows; once for each file."""

from __future__ import annotations

import logging
import threading

log = logging.getLogger(__name__)

MOST_KEPT = 10_000  # files of which it is remembered that they were named

_named: dict[str, None] = {}
_lock = threading.Lock()


def say(path: str, what_follows: str) -> None:
    with _lock:
        if path in _named:
            return
        _named[path] = None
        if len(_named) > MOST_KEPT:
            del _named[next(iter(_named))]
    log.error("%s is damaged (cut, or not what Rota writes): %s", path, what_follows)


def forget() -> None:
    """Begin anew, as a server that starts."""
    with _lock:
        _named.clear()
