"""Work out why runs wait and when they start, in threads of their own.

Behind a long queue that takes seconds. In the threads that all routes share, a few dozen such questions would keep
everybody else's calls waiting. One person, with all agents of theirs, has one of these threads at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rota.api.filereads import FileReads
from rota.api.read_slots import is_closing
from rota.app.authz import Principal
from rota.app.errors import Unavailable

T = TypeVar("T")

THREADS = 2
MAX_CALLS = 128  # worked on and waiting
LIMIT_S = 60.0  # for both together
PATIENCE_S = 2.0  # of those who want more than a forecast


class Gone(Unavailable):
    """Nobody reads the answer."""


def forecasters() -> FileReads:
    return FileReads(
        "rota-forecast", threads=THREADS, of_one=1, calls=MAX_CALLS, limit_s=LIMIT_S, doing="a forecast for"
    )


async def foretell(threads: FileReads, who: Principal, scope: Mapping[str, Any], work: Callable[[], T]) -> T:
    """Return what `work` returns, unless the client has gone by the time that there is a thread for it."""

    def unless_gone() -> T:
        if is_closing(scope):
            raise Gone("the client has gone")
        return work()

    return await threads.read(who.owner, unless_gone)


async def at_hand(threads: FileReads, who: Principal, scope: Mapping[str, Any], work: Callable[[], T]) -> T | None:
    """Return what `work` returns if that takes a moment only; None when it does not. What was begun is ended, and the
    next who asks finds it."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await foretell(threads, who, scope, work)
    except (TimeoutError, Unavailable):
        return None
