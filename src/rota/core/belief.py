"""How much of a run is left, to the scheduler: an index that is small where an end is near, and likely.

A run's length is not known, but something is: what its person declared, and how long runs lasted that were declared
alike. `believe` makes sorted points of that, each as likely as the next. `left_s` asks of them what a scheduler must
know: if this run were given some more time, how much GPU time would that cost for each run that ends by it? The best
such price over all amounts of time is the Gittins index, which orders jobs of unknown length best for the mean wait.
For a run of certain length it is simply the time that is left; for one of a kind that mostly ends at once, or else goes
on for days, it is small at first and jumps up once the run has outlived its hopes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

Points = tuple[float, ...]

POINTS = 16
SEEN = 32  # of runs that were declared alike
SPAN = 4.0  # where nothing is known, a run may take from a quarter of what was declared to all of it
PATIENT_S = 60.0  # the least that is left of what has outlived every belief
OVERRUN = 0.25  # and of what has overrun its own declaration: this share of what it has taken
STEPS = 4  # buckets per doubling: runs that are about as near their end are taken in the order they came


def declared(bound_s: float) -> Points:
    """All that is believed of a run of which only its declared time is known: evenly spread by orders of magnitude."""
    return tuple(bound_s * SPAN ** ((k + 0.5) / POINTS - 1.0) for k in range(POINTS))


def believe(seen: Sequence[float], bound_s: float) -> Points:
    """`seen`: how long runs like it lasted. () = nothing is known of it but its declared time."""
    if not seen:
        return ()
    points = sorted([*(max(1.0, lasted) for lasted in seen[:SEEN]), *declared(bound_s)])
    count = len(points)
    chosen = [points[min(count - 1, int((k + 0.5) * count / POINTS))] for k in range(POINTS)]
    chosen[-1] = points[-1]
    return tuple(round(point, 1) for point in chosen)


def left_s(points: Points, bound_s: float, done_s: float) -> float:
    """The index of a run that has done `done_s` seconds of its work. `points` as `believe` made them."""
    points = points or declared(bound_s)
    first, count = bisect_right(points, done_s), len(points)
    if first == count:
        rest = bound_s - done_s
        return max(PATIENT_S, OVERRUN * done_s, min(rest, done_s) if rest > 0 else 0.0)
    best = math.inf
    total = 0.0
    for k in range(first, count):
        more = points[k] - done_s
        total += more
        best = min(best, (total + more * (count - 1 - k)) / (k + 1 - first))
    return max(1.0, best)


def bucket(seconds: float) -> int:
    return math.ceil(math.log2(seconds) * STEPS) if seconds > 1.0 else 0


def of_bucket(number: int) -> float:
    return _SIZES[number]


def nearness(points: Points, bound_s: float, done_s: float) -> int:
    """The bucket of what is left. Asked of everything that runs in every pass, so what was found out is kept, for
    progress in steps of about a fiftieth."""
    return _nearness(points, bound_s, int(math.log2(done_s + 1.0) * FINE) if done_s else 0)


@lru_cache(maxsize=1 << 16)
def _nearness(points: Points, bound_s: float, step: int) -> int:
    return bucket(left_s(points, bound_s, math.exp2(step / FINE) - 1.0))


FINE = 32
_SIZES = tuple(math.exp2(number / STEPS) for number in range(64 * STEPS))
