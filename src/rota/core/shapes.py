"""What is asked for lately: the shapes of runs and how often, bounded, earlier runs fading as later ones come."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from rota.core.resources import Request

TYPICAL = 64  # shapes that are looked at; what the tail behind them would change is not worth its time
FADING = 2000  # runs after which an earlier one counts for a third
FORGOTTEN = 15 * FADING  # runs after which an earlier one counts for less than a millionth (e to the -15)
REFRESH = 100  # runs after which the typical shapes are drawn up anew

Typical = tuple[tuple[Request, float], ...]  # shapes and how often they are asked for


class Shapes:
    def __init__(self) -> None:
        self._times: dict[Request, float] = {}
        self._one = 1.0  # what a run counts now: this grows, which is cheaper than to let all the others shrink
        self._since = 0
        self._typical: Typical = ()

    def add(self, request: Request) -> None:
        self._one *= 1 + 1 / FADING
        self._since += 1
        self._times[request] = self._times.get(request, 0.0) + self._one
        if len(self._times) > 8 * TYPICAL or self._one > 1e100:
            self._times = {shape: times / self._one for shape, times in self._heaviest(4 * TYPICAL)}
            self._one = 1.0

    def add_all(self, requests: Sequence[Request]) -> None:
        """Add many, oldest first. What came long before the last of them counts for nothing and is left out."""
        for request in requests[-FORGOTTEN:]:
            self.add(request)

    def typical(self) -> Typical:
        """The same object until enough has come that it may have changed: what hangs on it need not be made anew."""
        if self._since >= REFRESH or (self._since and not self._typical):
            self._since = 0
            self._typical = tuple(self._heaviest(TYPICAL))
        return self._typical

    def copy(self) -> Shapes:
        twin = Shapes()
        twin._times, twin._one = dict(self._times), self._one
        twin._since, twin._typical = self._since, self._typical
        return twin

    def _heaviest(self, count: int) -> list[tuple[Request, float]]:
        """Gangs before small runs that come a little more often: see core/fragment.py."""
        return sorted(self._times.items(), key=lambda one: -one[1] * sqrt(one[0].gpus))[:count]
