"""Work out why runs wait and when they start, in threads of their own.

Behind a long queue that takes seconds. In the threads that all routes share, a few dozen such questions would keep
everybody else's calls waiting. One caller has one of these threads at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rota.api.filereads import FileReads
from rota.api.read_slots import has_gone
from rota.app.authz import Principal
from rota.app.errors import Unavailable

T = TypeVar("T")

THREADS = 2
MAX_CALLS = 128  # worked on and waiting
LIMIT_S = 60.0  # for both together


class Gone(Unavailable):
    """Nobody reads the answer."""


def forecasters() -> FileReads:
    return FileReads(
        "rota-forecast", threads=THREADS, of_one=1, calls=MAX_CALLS, limit_s=LIMIT_S, doing="a forecast for"
    )


async def foretell(threads: FileReads, who: Principal, scope: Mapping[str, Any], work: Callable[[], T]) -> T:
    """Return what `work` returns, unless the client has gone by the time that there is a thread for it."""

    def unless_gone() -> T:
        if has_gone(scope):
            raise Gone("the client has gone")
        return work()

    return await threads.read(who.name, unless_gone)
