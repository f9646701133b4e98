"""Where dry runs are worked on: copies of the state, away from the writer's thread.

The writer copies the state once for all dry runs between two changes, and rests from copying for a multiple of what a
copy took: whatever people try out, most of its time is left for what they do. Each dry run then works on a copy of that
copy, on the thread of the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from time import monotonic, sleep
from typing import Any

from rota.app.desk import Desk, Work
from rota.core.state import State

REST = 4.0  # times what a copy took, none is made: a fifth of the writer's time at most


class Trials:
    """`call` has work done on the writer's desk, and answers once the turn is durable."""

    def __init__(self, call: Callable[[Work], Future[Any]]) -> None:
        self._call = call
        self._asking = Lock()  # one at a time: the writer makes one copy a turn at most
        self._live: State | None = None  # the state that was copied; another one after the store was read again
        self._copy: State | None = None
        self._rests_until = 0.0

    def desk(self) -> Desk:
        """Return a desk on which everything that was answered before this call is visible, as in the writer's next
        turn. What is written on it goes nowhere. Blocks: not for the writer's thread or the event loop's."""
        with self._asking:
            sleep(max(0.0, self._rests_until - monotonic()))
            desk: Desk = self._call(self._begin).result()
        desk.state = copied(desk.state)
        return desk

    def _begin(self, desk: Desk) -> Desk:
        """Run on the writer's thread."""
        copy, live = self._copy, desk.state
        if copy is None or self._live is not live or (copy.version, copy.woken) != (live.version, live.woken):
            begun = monotonic()
            copy = self._copy = copied(live)
            self._live = live
            self._rests_until = begun + (1.0 + REST) * (monotonic() - begun)
        return desk.trial(copy)


def copied(state: State) -> State:
    """Return a copy to work on; what is known of the past is shared, and what is learned on the copy stays there."""
    twin = state.fork()
    twin.history = state.history.copy()
    return twin
