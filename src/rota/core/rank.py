"""Who stands before whom in the order of the policy."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator

from rota.core.order import Key
from rota.core.policies import auto
from rota.core.policy import Ordering
from rota.core.queue import Lane
from rota.core.snapshot import Snapshot
from rota.core.usage import Shares


def position(snap: Snapshot, run_id: str) -> int:
    """1 = next. Counted lane by lane with a binary search, not by walking the queue."""
    return 1 + sum(count for _, count in _lanes(snap, run_id))


def before(snap: Snapshot, run_id: str, most: int | None = None) -> Iterator[str]:
    """Those that stand before it, of each lane at most so many."""
    for lane, count in _lanes(snap, run_id):
        for _, other in lane.runs[: count if most is None else min(count, most)]:
            yield other


def _lanes(snap: Snapshot, run_id: str) -> Iterator[tuple[Lane, int]]:
    """Each lane, and how many of it go first: within a lane who came later never stands better."""
    shares = Shares(snap.usage, snap.load, snap.now, snap.policy.half_life_s, snap.board.layout.gpus)

    def turn(lane: Lane, key: Key) -> tuple[float, Key]:
        return _standing(snap, shares, lane, key), key

    mine = turn(snap.queue.lane_of(run_id), snap.queue.key_of(run_id))
    for lane in snap.queue.lanes():
        yield lane, bisect_left(lane.runs, mine, key=_of(lane, turn))


def _of(lane: Lane, turn: Callable[[Lane, Key], tuple[float, Key]]) -> Callable[[tuple[Key, str]], tuple[float, Key]]:
    return lambda entry: turn(lane, entry[0])


def _standing(snap: Snapshot, shares: Shares, lane: Lane, key: Key) -> float:
    """As the pass ranks lanes against each other."""
    if snap.runs[lane.runs[0][1]].spec.filler:
        return math.inf
    match snap.policy.ordering:
        case Ordering.AUTO:
            return auto.of_lane(snap.policy, lane.band, key[0], snap.now, shares.factor(lane.user))
        case Ordering.FAIR_SHARE:
            return shares.of(lane.user)
        case _:
            return 0.0
