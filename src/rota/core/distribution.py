"""How long something may take, as a distribution: quantiles, and what is left of it once some of it is over.

It stands on n sorted durations. A further duration falls into each of the n + 1 gaps between them with the same chance,
so the i-th is the quantile i / (n + 1); between two of them it is taken to rise evenly. Beyond the longest, where 1 of
n + 1 lies, the tail falls off as a power, the quicker the closer together the known ones are. One in five of those has
something else the matter with it: what has outlived all that could be expected goes on for a share of what it has taken
so far, and does not end at the next moment for ever. Below the shortest it is a power, too.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

TAIL = 2.0  # exponent: half of those that outlive all that is known go on for another 41 % of their time
STEEPEST = 50.0
ODD = 0.2  # of those beyond the longest
SHORTEST_S = 1.0
GRACE_S = 10.0  # what is past its limit is being ended

# Where nothing like it has ended yet: five durations, as shares of what was said. People who estimate are seldom off
# by more than twice; a limit is a bound, and most runs end well before; the house's default is a guess.
ESTIMATED = (0.4, 0.7, 1.0, 1.4, 2.5)
BOUNDED = (1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6)
GUESSED = (0.1, 0.4, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Distribution:
    points: Sequence[float]  # sorted, at least one
    source: str  # what it rests on, in words
    count: int = 0  # runs seen
    cap_s: float | None = None  # a time limit: nothing lasts longer
    past_s: float = 0.0  # so much of it is over already; quantiles are of what is left

    def quantile(self, q: float) -> float:
        """The time by which it ends with chance `q`, 0 < q < 1, counted from now."""
        left = self._time((1.0 - q) * self._survival(self.past_s)) if self.past_s else self._time(1.0 - q)
        if self.cap_s is not None:
            if self.past_s >= self.cap_s:
                return GRACE_S
            left = min(left, self.cap_s)
        return max(SHORTEST_S, left - self.past_s)

    @property
    def median(self) -> float:
        return self.quantile(0.5)

    def remaining(self, ran_s: float) -> Distribution:
        """Of what is left when it has run for so long and not ended."""
        return replace(self, past_s=max(0.0, ran_s)) if ran_s > 0 else self

    def _survival(self, t: float) -> float:
        """The chance that it takes longer than `t`. Never 0."""
        points, gaps = self.points, len(self.points) + 1
        i = bisect_left(points, t)
        if i == 0:
            return 1.0 - math.pow(t / points[0], self._steepness(points[0])) / gaps
        if i == len(points):
            last, steep = points[-1], self._steepness(points[-1])
            turn = last * math.pow(ODD, -1.0 / steep)  # from there on it is one of the odd ones
            return (math.pow(last / t, steep) if t <= turn else ODD * math.pow(turn / t, TAIL)) / gaps
        below, above = points[i - 1], points[i]
        return 1.0 - (i + (t - below) / (above - below)) / gaps

    def _time(self, survival: float) -> float:
        """The time that it outlasts with this chance."""
        points, gaps = self.points, len(self.points) + 1
        rank = (1.0 - survival) * gaps  # so many gaps lie below
        if rank <= 1.0:
            return points[0] * math.pow(max(0.0, rank), 1.0 / self._steepness(points[0]))
        beyond = survival * gaps  # of the last gap, the share that is left
        if beyond <= 1.0:
            last, steep = points[-1], self._steepness(points[-1])
            if beyond >= ODD:
                return last * math.pow(beyond, -1.0 / steep)
            return last * math.pow(ODD, -1.0 / steep) * math.pow(beyond / ODD, -1.0 / TAIL)
        i = min(int(rank), len(points) - 1)  # rounding may bring it a hair past the last gap
        return points[i - 1] + (points[i] - points[i - 1]) * (rank - i)

    def _steepness(self, end: float) -> float:
        """Of the tail at this end, from how far it lies from the middle: as in a bell curve over orders of magnitude,
        where the end of n draws lies so far out that n expect one there."""
        count = len(self.points)
        away = abs(math.log(end / self.points[count // 2]))
        reach = max(0.4, 1.2 * math.log(count) - 0.9)
        return STEEPEST if away * STEEPEST <= reach else max(TAIL, reach / away)


def estimated(seconds: float, cap_s: float | None = None) -> Distribution:
    return Distribution(tuple(seconds * share for share in ESTIMATED), "an estimate", cap_s=cap_s)


def bounded(limit_s: float) -> Distribution:
    return Distribution(tuple(limit_s * share for share in BOUNDED), "a time limit", cap_s=limit_s)


def guessed(seconds: float) -> Distribution:
    return Distribution(tuple(seconds * share for share in GUESSED), "a guess")
