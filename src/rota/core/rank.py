"""Who stands before whom in the order of the policy."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from rota.core import order
from rota.core.order import Band, Key
from rota.core.policy import Policy
from rota.core.queue import Lane
from rota.core.snapshot import Snapshot
from rota.core.turns import Turns
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
    """Each lane, and how many of it go first. One that was stopped for another goes after that one (core/turns.py)."""
    policy = snap.policy
    shares = Shares(snap.usage, snap.load, snap.now, policy.half_life_s, snap.board.layout.gpus)
    mine, key = snap.queue.lane_of(run_id), snap.queue.key_of(run_id)
    at = Turns(snap, shares, lambda group: False).turn_of(mine, key, snap.runs[run_id])
    for lane in snap.queue.lanes():
        if lane is mine:  # whose runs go in order, whatever they owe
            yield lane, bisect_left(lane.runs, (key, run_id))
        else:
            yield lane, ahead(policy, shares, (lane.user, lane.band), lane.runs, at)


def ahead(
    policy: Policy, shares: Shares, lane: tuple[str, Band], runs: list[tuple[Key, str]], at: tuple[float, Key]
) -> int:
    """How many of a lane go before one that stands there: within a lane who came later never stands better."""
    user, band = lane
    return bisect_left(runs, at, key=lambda entry: (order.rank(policy, shares, user, band, entry[0]), entry[0]))
