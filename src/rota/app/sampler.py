"""Now and then one of those that have just come is foretold, so that predictions are scored where nobody asks.

It is seldom and cheap: a queue that is dear to walk is left to those who ask, and what a walk cost is rested for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from rota.core import events as e

EVERY_S = 10.0
MOST_WAITING = 1000
REST = 50.0  # times what it cost


class Sampler:
    """`foretell` is told a run that has just come; `waiting` is how many wait."""

    def __init__(self, foretell: Callable[[str], object], waiting: Callable[[], int]) -> None:
        self._foretell, self._waiting = foretell, waiting
        self._newest = ""
        self._rest_until = 0.0

    def hear(self, first: int, events: Sequence[e.Event]) -> None:
        """On the loop's thread."""
        for event in reversed(events):
            if isinstance(event, e.RunSubmitted):
                self._newest = event.run_id
                return

    def take(self) -> None:
        run_id, self._newest = self._newest, ""
        begun = monotonic()
        if run_id and begun >= self._rest_until and 0 < self._waiting() <= MOST_WAITING:
            self._foretell(run_id)
            ended = monotonic()
            self._rest_until = ended + REST * (ended - begun)
