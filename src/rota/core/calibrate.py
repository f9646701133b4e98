"""Were the foretold starts right? Predictions that have come true, or not, are scored; what they were off by in the
past corrects the next ones.

A walk knows nothing of those who will come and go first, so under some policies starts come later than foretold, and by
a share that stays much the same. That share is learned here from what happened, per horizon, and believed the more the
more predictions it stands on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rota.core.odds import quantile

HORIZONS = ((600.0, "< 10 min"), (3600.0, "< 1 h"), (6 * 3600.0, "< 6 h"), (math.inf, "more"))
FLOOR_S = 60.0  # below a minute nobody counts: added to both sides of every ratio
TRUSTED = 20  # so many predictions weigh as much as what is believed without them
LEAST, MOST = 0.25, 8.0


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
    """Factors on the walked waits, one pair per horizon."""

    def __init__(self, scored: Iterable[Scored] = ()) -> None:
        ratios: list[tuple[list[float], list[float]]] = [([], []) for _ in HORIZONS]
        for one in scored:
            middle, late = ratios[horizon(one.foretold.walked50_s)]
            middle.append((one.waited_s + FLOOR_S) / (one.foretold.walked50_s + FLOOR_S))
            late.append((one.waited_s + FLOOR_S) / (one.foretold.walked90_s + FLOOR_S))
        self._factors: list[tuple[float, float]] = []
        before = (1.0, 1.0)
        for middle, late in ratios:
            before = (_factor(middle, 0.5, before[0]), _factor(late, 0.9, before[1]))
            self._factors.append(before)

    def corrected(self, walked50_s: float, walked90_s: float, least_s: float = 0.0) -> Foretold:
        """`least_s`: what no correction can make shorter."""
        middle, late = self._factors[horizon(walked50_s)]
        told50_s = max(0.0, min(least_s, walked50_s), (walked50_s + FLOOR_S) * middle - FLOOR_S)
        told90_s = max(told50_s, (walked90_s + FLOOR_S) * late - FLOOR_S)
        return Foretold(walked50_s, walked90_s, told50_s, told90_s)


def _factor(ratios: list[float], q: float, otherwise: float) -> float:
    """`otherwise` is what was found for the horizon before: all there is to go by until this one has shown itself."""
    found = quantile(sorted(ratios), q) if ratios else None
    if found is None:
        return otherwise
    weight = len(ratios) / (len(ratios) + TRUSTED)
    found = min(max(found, LEAST), MOST)
    return math.exp(weight * math.log(found) + (1 - weight) * math.log(otherwise))
