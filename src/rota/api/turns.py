"""Turns of parties at the event loop.

Most calls are answered without waiting for anything, so a bound on calls that are worked on at a time does not touch
them: five hundred that come together are answered one after the other, and everybody else waits for all of them. So
AT_A_TIME calls of a party begin in one pass of the event loop; the rest wait in the party's own line, first come, first
served, and lines have their turns in order. A call has its place for no longer than its beginning: streams and long
waits take none from others. A new connection counts as a call (`accept`), and so does a piece of what a
client (`pipeline`) or a watcher (`frames`) sends.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from typing import TypeVar

Place = TypeVar("Place")
AT_A_TIME = 16  # of one party that has no line, and of all lines together; some milliseconds of work


def next_in(lines: OrderedDict[str, deque[Place]]) -> tuple[str, Place]:
    """Take the first one of the party whose turn it is. The party then stands behind all others."""
    party, line = lines.popitem(last=False)
    first = line.popleft()
    if line:
        lines[party] = line
    return party, first


class Turns:
    """Use it on the event loop alone. A line has at most one place for each connection."""

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()  # in this pass, by party
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._scheduled = False

    def take(self, party: str) -> bool:
        """Return whether something may begin now, and count it. Else the caller waits for a turn, or comes again."""
        self._schedule()
        if party in self._lines or self._begun[party] >= AT_A_TIME:
            return False
        self._begun[party] += 1
        return True

    async def turn(self, party: str) -> None:
        """Return when this call may begin: mostly at once."""
        if not self.take(party):
            await self.line_up(party)

    def line_up(self, party: str) -> asyncio.Future[None]:
        """Return what is done once a turn of the party has come, where `take` gave none. Cancel it to leave."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(party, deque()).append(turn)
        return turn

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._scheduled = False
        self._begun.clear()
        left = AT_A_TIME
        while left and self._lines:
            party, turn = next_in(self._lines)
            if not turn.done():  # else its client has gone
                turn.set_result(None)
                self._begun[party] += 1
                left -= 1
        if self._begun or self._lines:
            self._schedule()
