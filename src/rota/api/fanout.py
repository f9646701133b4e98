"""Turns of watchers at the event loop, when there is news for all of them.

To tell one watcher costs a tenth of a millisecond, and some hundred of them may wait for each event. All at once they
would hold up every other call, batch after batch. So AT_A_TIME of them are told in one pass of the event loop, and then
all rest four times as long as that took: together they have a fifth of the event loop at most. Meanwhile more happens,
and is told in one piece. A few watchers notice nothing of it: their rest is a millisecond.

Watchers wait in lines, one for each party, and lines have their turns in order: one party's hundred watchers do not
delay another party's only one.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque

from rota.api.turns import next_in

AT_A_TIME = 16
REST = 4.0  # times as long as the telling took
# The machine may be so busy that telling takes long for other reasons. At this rest a thousand watchers are still told
# within some seconds.
LONGEST_REST_S = 0.1


class FanOut:
    """Use it on the event loop alone. A party has one place in a line for each of its watchers."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[asyncio.Future[bool]]] = OrderedDict()
        self._idle: dict[asyncio.Future[bool], str] = {}  # who has been told everything -> party
        self._resting = False  # or at work: the next turns are given out later
        self._closed = False

    async def turn(self, party: str) -> None:
        """Return when this watcher may be told of something that is there already: mostly at once."""
        if self._closed:
            return
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(party, deque()).append(turn)
        self._give_out()
        await turn

    async def news(self, party: str, pause_s: float) -> bool:
        """Wait for news, and for this watcher's turn to be told. Return False where there was none for `pause_s`, or
        where there will be none."""
        if self._closed:
            return False
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._idle[turn] = party
        pause = loop.call_later(pause_s, self._pause, turn)
        try:
            return await turn
        finally:
            pause.cancel()
            self._idle.pop(turn, None)

    def tell(self) -> None:
        """Something happened: all that have been told everything get in line."""
        for turn, party in self._idle.items():
            self._lines.setdefault(party, deque()).append(turn)
        self._idle.clear()
        self._give_out()

    def close(self) -> None:
        """Nobody waits any longer."""
        self._closed = True
        waiting = [*self._idle, *(turn for line in self._lines.values() for turn in line)]
        self._idle.clear()
        self._lines.clear()
        for turn in waiting:
            if not turn.done():
                turn.set_result(False)

    def _pause(self, turn: asyncio.Future[bool]) -> None:
        """Who is in line by now keeps its place: its turn comes."""
        if self._idle.pop(turn, None) is not None and not turn.done():
            turn.set_result(False)

    def _give_out(self) -> None:
        if self._resting:
            return
        left = AT_A_TIME
        while left and self._lines:
            _, turn = next_in(self._lines)
            if not turn.done():  # else its client has gone
                turn.set_result(True)
                left -= 1
        if left < AT_A_TIME:
            self._resting = True
            asyncio.get_running_loop().call_soon(self._written, time.monotonic())

    def _written(self, since: float) -> None:
        """The watchers have written in this pass of the event loop; what they wrote leaves at its end."""
        asyncio.get_running_loop().call_soon(self._rest, since)

    def _rest(self, since: float) -> None:
        rest_s = min(LONGEST_REST_S, REST * (time.monotonic() - since))
        asyncio.get_running_loop().call_later(rest_s, self._go_on)

    def _go_on(self) -> None:
        self._resting = False
        self._give_out()
