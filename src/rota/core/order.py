"""Who is next: which module of core/policies answers, and what a lane shares.

Every ordering sorts a waiting run once, inside a lane of runs that stay in that order for ever. What moves with time
(a person's usage, the patience of a run) ranks the lanes against each other, so that a pass looks at one run of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from rota.core.policies import auto, fair_share, fcfs, las, priority, sjf, srtf
from rota.core.policy import Ordering, Policy
from rota.core.run import Run
from rota.core.usage import Shares

Key = tuple[float, int]
Band = tuple[object, ...]

_KEYS: Mapping[Ordering, Callable[[Policy, Run], Key]] = {
    Ordering.FCFS: fcfs.key,
    Ordering.PRIORITY: priority.key,
    Ordering.SJF: sjf.key,
    Ordering.FAIR_SHARE: fair_share.key,
    Ordering.SRTF: srtf.key,
    Ordering.LAS: las.key,
    Ordering.AUTO: auto.key,
}
_AUTO = Ordering.AUTO  # to look a member up takes longer than all the rest of `band`, up to Python 3.11
MOVING = frozenset({Ordering.SRTF, Ordering.LAS, Ordering.AUTO})  # those that have a standing


def key(policy: Policy, run: Run) -> Key:
    """Smaller is earlier; within a lane."""
    return _KEYS[policy.ordering](policy, run)


def band(policy: Policy, run: Run) -> Band:
    """What runs of one lane share besides person, shape and sweep."""
    spec = run.spec
    # of two that differ in priority one may be stopped for the other, and must then let it pass
    kind: Band = auto.band(policy, run) if policy.ordering is _AUTO else (run.priority,)
    if spec.filler or spec.reservation:
        return (*kind, spec.filler, spec.reservation)
    return kind


def is_filler(band: Band) -> bool:
    return len(band) % auto.PARTS in (2, 3) and bool(band[-2])  # the last two are added by `band`, where needed


def rank(policy: Policy, shares: Shares, user: str, band: Band, key: Key) -> float:
    """What ranks lanes against each other: of a waiting run that stands in such a lane with such a key."""
    if is_filler(band):
        return math.inf
    match policy.ordering:
        case Ordering.AUTO:
            return auto.of_lane(policy, band, key[0], shares.now, shares.factor(user))
        case Ordering.FAIR_SHARE:
            return shares.of(user)
        case _:
            return 0.0


def standing(policy: Policy, run: Run, now: float, share: float) -> float:
    """How urgent a run is that waits or runs, where the ordering knows; smaller is more urgent."""
    match policy.ordering:
        case Ordering.AUTO:
            return auto.standing(policy, run, now, share)
        case Ordering.SRTF:
            return srtf.standing(policy, run, now)
        case Ordering.LAS:
            return las.standing(policy, run, now)
        case _:
            raise ValueError(f"{policy.ordering} has no standing")
