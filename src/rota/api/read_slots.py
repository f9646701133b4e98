"""How many reads of one caller are worked on at a time.

A read is rendered in a thread, and all threads share one interpreter with the event loop: forty reads of one caller
would leave everybody else a fortieth of it. Further reads of that caller wait for its own earlier ones, in order.
Streams and logs are not counted: they wait for files and for time, and have bounds of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

AT_A_TIME = 3
MOST_WAITING = 256


class TooManyReads(Exception):
    def __init__(self, caller: str) -> None:
        super().__init__(f"{caller} has {MOST_WAITING} reads waiting; wait for their answers before sending more")


class _Line:
    __slots__ = ("reads", "slots")

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(AT_A_TIME)
        self.reads = 0  # worked on and waiting


class ReadSlots:
    """Use it on the event loop alone."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def slot(self, caller: str) -> AsyncIterator[None]:
        """Wait until this caller's turn has come; raises TooManyReads where its line is full."""
        line = self._lines.setdefault(caller, _Line())
        if line.reads >= AT_A_TIME + MOST_WAITING:
            raise TooManyReads(caller)
        line.reads += 1
        try:
            async with line.slots:
                yield
        finally:
            line.reads -= 1
            if not line.reads:
                del self._lines[caller]


def has_gone(scope: Mapping[str, Any]) -> bool:
    """Return whether the client has hung up, so that nobody reads an answer."""
    gone: Callable[[], bool] | None = scope.get("rota.gone")
    return gone is not None and gone()


def is_counted(method: str, path: str) -> bool:
    """Return whether a request is a read whose answer is rendered."""
    return method == "GET" and path != "/events" and not path.endswith(("/logs", "/stream", "/artifacts"))
