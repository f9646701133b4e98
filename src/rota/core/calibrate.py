"""Were the foretold starts right? Predictions that have come true, or not, are scored; what they were off by in the
past corrects the next ones.

A walk knows nothing of those who will come and go first, so under some policies starts come later than foretold, and by
a share that stays much the same. That share is learned here from what happened, per horizon, and believed the more the
more predictions it stands on.

People choose which predictions there are: who submits, declares a run time and ends early is foretold wrongly as often
as wanted. So what corrects a person's forecasts rests on that person's own predictions, and on those of others only as
far as it stands without any one of them (docs/adr/0022-no-one-corrects-for-all.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rota.core.odds import quantile

HORIZONS = ((600.0, "< 10 min"), (3600.0, "< 1 h"), (6 * 3600.0, "< 6 h"), (math.inf, "more"))
FLOOR_S = 60.0  # below a minute nobody counts: added to both sides of every ratio
TRUSTED = 20  # so many predictions weigh as much as what is believed without them
LEAST, MOST = 0.25, 8.0
# What one person may move the correction of another by: the predictions of honest people leave that much open, too (the
# median of 50 to 100 ratios that spread by half; measured in the ADR).
NOISE = 1.1


@dataclass(frozen=True, slots=True)
class Foretold:
    """Seconds from the moment of asking to the start, as walked and as told."""

    walked50_s: float
    walked90_s: float
    told50_s: float
    told90_s: float


@dataclass(frozen=True, slots=True)
class Scored:
    foretold: Foretold
    waited_s: float
    user: str = ""  # whose run it was


@dataclass(frozen=True, slots=True)
class Row:
    """How predictions of one horizon did."""

    horizon: str
    count: int
    by_p50: float | None  # share that had started by then; 0.5 is right
    by_p90: float | None  # 0.9 is right
    error_s: float | None  # half of them were off the p50 by less


def horizon(wait_s: float) -> int:
    return next(n for n, (bound, _) in enumerate(HORIZONS) if wait_s < bound)


def sheet(scored: Sequence[Scored]) -> tuple[Row, ...]:
    """All together first, then by how far ahead the start was foretold."""
    rows = [_row("all", scored)]
    for number, (_, name) in enumerate(HORIZONS):
        rows.append(_row(name, [one for one in scored if horizon(one.foretold.told50_s) == number]))
    return tuple(rows)


def _row(name: str, scored: Sequence[Scored]) -> Row:
    count = len(scored)
    if not count:
        return Row(name, 0, None, None, None)
    errors = sorted(abs(one.waited_s - one.foretold.told50_s) for one in scored)
    return Row(
        name,
        count,
        sum(one.waited_s <= one.foretold.told50_s + 1.0 for one in scored) / count,
        sum(one.waited_s <= one.foretold.told90_s + 1.0 for one in scored) / count,
        errors[(count - 1) // 2],
    )


class Correction:
    """Factors on the walked waits of one person's runs, one pair per horizon. `scored` comes oldest first."""

    def __init__(self, scored: Iterable[Scored] = (), user: str = "") -> None:
        horizons: list[list[Scored]] = [[] for _ in HORIZONS]
        for one in scored:
            horizons[horizon(one.foretold.walked50_s)].append(one)
        kept = [_bounded(each, user) for each in horizons]
        others = {one.user for each in kept for one in each if one.user != user}
        middles = [sorted((_ratio(one, one.foretold.walked50_s), one.user) for one in each) for each in kept]
        lates = [sorted((_ratio(one, one.foretold.walked90_s), one.user) for one in each) for each in kept]
        self._factors = tuple(zip(_factors(middles, 0.5, others), _factors(lates, 0.9, others), strict=True))

    def corrected(
        self, walked50_s: float, walked90_s: float, least_s: float = 0.0, expected_s: float = 0.0
    ) -> Foretold:
        """`least_s`: what no correction can make shorter. `expected_s`: the wait if every run takes what is believed
        of it; no correction says that 9 of 10 start before that."""
        middle, late = self._factors[horizon(walked50_s)]
        told50_s = max(0.0, min(least_s, walked50_s), (walked50_s + FLOOR_S) * middle - FLOOR_S)
        told90_s = max(told50_s, min(expected_s, walked90_s), (walked90_s + FLOOR_S) * late - FLOOR_S)
        return Foretold(walked50_s, walked90_s, told50_s, told90_s)


def _bounded(scored: Sequence[Scored], user: str) -> Sequence[Scored]:
    """Leave out the oldest of the other person with the most, so that no other has more than the next one."""
    counts = Counter(one.user for one in scored if one.user != user).most_common(2)
    if len(counts) < 2:
        return scored
    (most, count), (_, bound) = counts
    kept: list[Scored] = []
    for one in scored:
        if one.user == most and count > bound:
            count -= 1
        else:
            kept.append(one)
    return kept


def _ratio(one: Scored, walked_s: float) -> float:
    return (one.waited_s + FLOOR_S) / (walked_s + FLOOR_S)


def _factors(horizons: Sequence[Sequence[tuple[float, str]]], q: float, others: Collection[str]) -> list[float]:
    """Return a factor per horizon, as far as all the ways to leave one of `others` out agree on it."""
    found = _chain([[ratio for ratio, _ in each] for each in horizons], q)
    if not others:
        return found
    ways = [_chain([[ratio for ratio, user in each if user != other] for each in horizons], q) for other in others]
    mildest = [_mildest(each) for each in zip(*ways, strict=True)]
    return [min(max(all_, mild / NOISE), mild * NOISE) for all_, mild in zip(found, mildest, strict=True)]


def _chain(horizons: Sequence[Sequence[float]], q: float) -> list[float]:
    factors: list[float] = []
    for ratios in horizons:
        factors.append(_factor(ratios, q, factors[-1] if factors else 1.0))
    return factors


def _mildest(factors: Sequence[float]) -> float:
    """Return the one nearest to 1, which corrects nothing; 1 where they contradict one another."""
    low, high = min(factors), max(factors)
    return low if low > 1.0 else high if high < 1.0 else 1.0


def _factor(ratios: Sequence[float], q: float, otherwise: float) -> float:
    """`otherwise` is what was found for the horizon before: all there is to go by until this one has shown itself."""
    found = quantile(ratios, q) if ratios else None
    if found is None:
        return otherwise
    weight = len(ratios) / (len(ratios) + TRUSTED)
    found = min(max(found, LEAST), MOST)
    return math.exp(weight * math.log(found) + (1 - weight) * math.log(otherwise))
