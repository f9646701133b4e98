"""How many calls of one caller are worked on at a time, for each kind of call.

A read is rendered in a thread, and all threads share one interpreter with the event loop: forty reads of one caller
would leave everybody else a fortieth of it. Further reads of that caller wait for its own earlier ones, in order. It is
the same with changes, which wait for threads and for the writer, and with logs and artifacts, which are read by threads
that may have to wait for a file. A call has its place until most of its answer is read, since the answer takes memory
until then. Streams are not counted: they wait for time, and have bounds of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from rota.app.errors import Full

AT_A_TIME = 3
FILES_AT_A_TIME = 4  # a quarter of the threads
CHANGES_AT_A_TIME = 32  # the writer takes in some hundreds to thousands a second
SWEEPS_AT_A_TIME, DRY_RUNS_AT_A_TIME = 8, 16  # these wait for threads of their own; an answer may have megabytes
MOST_WAITING = 1024  # to wait costs the server less than to refuse and to be asked again at once


class TooManyReads(Full):
    def __init__(self, caller: str, kind: str) -> None:
        super().__init__(f"{caller} has {MOST_WAITING} {kind} waiting; wait for their answers before sending more")


class _Line:
    __slots__ = ("reads", "slots")

    def __init__(self, at_a_time: int) -> None:
        self.slots = asyncio.Semaphore(at_a_time)
        self.reads = 0  # worked on and waiting


class ReadSlots:
    """Use it on the event loop alone."""

    def __init__(self, kind: str = "reads", at_a_time: int = AT_A_TIME) -> None:
        self._kind, self._at_a_time = kind, at_a_time
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def slot(self, caller: str) -> AsyncIterator[None]:
        """Wait until this caller's turn has come; raises TooManyReads where its line is full."""
        line = self._lines.get(caller)
        if line is None:
            line = self._lines[caller] = _Line(self._at_a_time)
        if line.reads >= self._at_a_time + MOST_WAITING:
            raise TooManyReads(caller, self._kind)
        line.reads += 1
        try:
            async with line.slots:
                yield
        finally:
            line.reads -= 1
            if not line.reads:
                del self._lines[caller]


def has_gone(scope: Mapping[str, Any]) -> bool:
    """Return whether the client has hung up, so that nobody reads an answer. For the event loop: the connection of one
    that has is closed, if it is not yet, so that `receive` tells of it."""
    gone: Callable[[], bool] | None = scope.get("rota.gone")
    return gone is not None and gone()


def is_closing(scope: Mapping[str, Any]) -> bool:
    """Return whether the client is known to have gone. For any thread."""
    closing: Callable[[], bool] | None = scope.get("rota.closing")
    return closing is not None and closing()


async def drained(scope: Mapping[str, Any]) -> None:
    """Wait until the client has read most of its answer, or has gone: an answer takes memory until then, so it is one
    of the few that its caller may have."""
    wait: Callable[[], Awaitable[None]] | None = scope.get("rota.drained")
    if wait is not None:
        await wait()


def is_stream(path: str) -> bool:
    """Return whether this is a route of a stream. A document whose id is `stream` is read like every other."""
    return path == "/events" or path.endswith(("/logs/stream", "/sidecar-logs/stream"))


def reads_files(path: str) -> bool:
    return path.endswith(("/logs", "/artifacts"))
