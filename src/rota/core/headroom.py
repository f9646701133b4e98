"""Who stands back in a pass, so that short runs find a GPU (core/express.py says why, and for how long)."""

from __future__ import annotations

from rota.core import express
from rota.core.policies import auto
from rota.core.policy import Ordering
from rota.core.queue import Lane
from rota.core.run import Run
from rota.core.snapshot import Snapshot

MANY = 2  # gangs


class Headroom:
    def __init__(self, snap: Snapshot) -> None:
        self.snap, self._layout = snap, snap.board.layout
        self.kept = express.kept(snap.policy, self._layout.gpus) if snap.policy.ordering is Ordering.AUTO else 0
        self.until: float | None = None  # when the first of those who stand back need not any more
        self._gangs: int | None = None  # that wait, counted no further than two
        self._within_reach: int | None = None

    def stands_back(self, run: Run, lane: Lane, free: int) -> bool:
        """With so many GPUs free it would leave none to short runs. Nor would others of its lane, who came later."""
        gpus = lane.request.gpus
        if not self.kept or not lane.band[auto.STAYS] or not 0 < gpus <= self._layout.gpus - self.kept:
            return False
        until = express.until(run)
        if until <= self.snap.now or free + self.within_reach() - gpus >= self.kept:
            return False
        if self.gangs() >= (MANY if gpus >= self._layout.max_gpus else 1):
            return False
        self.until = until if self.until is None else min(until, self.until)
        return True

    def missing(self) -> int:
        """GPUs that must be free for short runs, beside those that can be made so."""
        return max(0, self.kept - self.within_reach())

    def within_reach(self) -> int:
        """GPUs of those that can be stopped for a short run."""
        if self._within_reach is None:
            runs = (self.snap.runs[run_id] for run_id in self.snap.stoppable)
            self._within_reach = sum(run.spec.request.gpus for run in runs if express.yields(self.snap.policy, run))
        return self._within_reach

    def started(self, run: Run) -> None:
        if self.kept and express.yields(self.snap.policy, run):
            self._within_reach = self.within_reach() + run.spec.request.gpus

    def gangs(self) -> int:
        if self._gangs is None:
            self._gangs = 0
            for kind in self.snap.queue.kinds():
                if kind.request.gpus >= self._layout.max_gpus:
                    self._gangs += sum(len(lane.runs) for lane in kind.lanes.values())
                if self._gangs >= MANY:
                    break
        return self._gangs
