"""In which order a pass looks at those who wait: the first of each lane, by the standing it has now."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heapify

from rota.core import order
from rota.core.order import Key
from rota.core.policies import auto
from rota.core.policy import Ordering
from rota.core.queue import Kind, Lane
from rota.core.run import Run
from rota.core.snapshot import Snapshot
from rota.core.usage import LEAST_FACTOR, Shares

Entry = tuple[float, Key, str, Lane | Kind, int]  # rank, key, run, its lane and its place there; or a whole kind


class Turns:
    def __init__(self, snap: Snapshot, shares: Shares, at_cap: Callable[[str], bool]) -> None:
        """`at_cap`: no more runs of a group may start."""
        self.snap, self.policy, self.shares, self.at_cap = snap, snap.policy, shares, at_cap

    def line_up(self) -> tuple[dict[int, list[Entry]], bool]:
        """The first of each lane, by shape: one shape that cannot be placed any more is then let go of as a whole. And
        whether every lane wants a GPU. Under auto lanes may be many, and a whole kind of them stands in for its lanes
        where the best of them could stand, until its turn comes."""
        lines: dict[int, list[Entry]] = {}
        needs_gpu = True
        for kind in self.snap.queue.kinds():
            line = lines.setdefault(kind.shape, [])
            needs_gpu = needs_gpu and kind.request.gpus > 0
            if self.policy.ordering is Ordering.AUTO and not order.is_filler(kind.band):
                if kind.pace is None:
                    kind.pace = auto.paced(self.policy, kind.band)
                best = auto.at(kind.pace, self.snap.now - kind.oldest, LEAST_FACTOR)
                line.append((best, (-math.inf, kind.number), "", kind, -1))
            else:
                line += self.unfold(kind)
        for line in lines.values():
            heapify(line)
        return {shape: line for shape, line in lines.items() if line}, needs_gpu

    def unfold(self, kind: Kind) -> Iterator[Entry]:
        for lane in kind.lanes.values():
            if not lane.group or not self.at_cap(lane.group):
                yield self.entry(lane, 0)

    def entry(self, lane: Lane, at: int) -> Entry:
        key, run_id = lane.runs[at]
        run = self.snap.runs[run_id]
        return (*self.turn_of(lane, key, run), run_id, lane, at)

    def turn_of(self, lane: Lane, key: Key, run: Run) -> tuple[float, Key]:
        """Its rank and key. One that was stopped for a run that still waits does not stand before that one, whatever
        the order says, or the two would stop and start in turns for ever."""
        turn = (self.standing_of(lane, key), key)
        seen = {run.id}
        while (first := self.owed(run)) is not None and first.id not in seen:
            theirs = self.snap.queue.key_of(first.id)
            standing = self.standing_of(self.snap.queue.lane_of(first.id), theirs)
            turn = max(turn, (standing, (theirs[0], theirs[1] + 1)))
            seen.add(first.id)
            run = first
        return turn

    def owed(self, run: Run) -> Run | None:
        """For whom it was stopped, if that one waits, has not had its start since and has not been made less urgent."""
        if not run.past or run.past[-1].for_run not in self.snap.queue or run.spec.filler:
            return None
        first, last = self.snap.runs[run.past[-1].for_run], run.past[-1]
        if self.lost_its_claim(first, run):
            return None
        since = last.ended_at if last.stopped_at is None else last.stopped_at  # records of the first release lack it
        return None if first.past and first.past[-1].ended_at > since else first

    def lost_its_claim(self, first: Run, run: Run) -> bool:
        """Whether the one that another was stopped for could not have that one stopped now: its priority was lowered
        since, or its standing has become worse by other means. For a stop it had to stand better by `margin`, and it
        keeps its claim until it stands worse by as much: or the two would stop and start in turns."""
        if first.priority < run.priority:
            return True
        if first.priority == run.priority and not (self.policy.ordering in order.MOVING and run.saves):
            return True
        if self.policy.ordering is not Ordering.AUTO or run.id not in self.snap.queue:
            return False
        own, theirs = (
            self.standing_of(self.snap.queue.lane_of(one.id), self.snap.queue.key_of(one.id)) for one in (run, first)
        )
        return theirs > self.policy.margin * own

    def standing_of(self, lane: Lane, key: Key) -> float:
        return order.rank(self.policy, self.shares, lane.user, lane.band, key)
