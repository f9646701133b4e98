"""Who stands back in a pass, so that short runs find a GPU (core/express.py says why, and for how long)."""

from __future__ import annotations

from rota.core import express
from rota.core.policies import auto
from rota.core.policy import Backfill, Ordering
from rota.core.queue import Kind, Lane
from rota.core.quota import Over, over
from rota.core.run import Run
from rota.core.snapshot import Snapshot
from rota.core.usage import Load


class Headroom:
    def __init__(self, snap: Snapshot) -> None:
        self.snap, self._layout = snap, snap.board.layout
        policy = snap.policy
        # who stands back has a reservation: other ways to backfill have none, or one for everybody
        able = policy.ordering is Ordering.AUTO and policy.backfill is Backfill.EASY
        self.kept = express.kept(policy, self._layout.in_service) if able else 0
        self.until: float | None = None  # when the first of those who stand back need not any more
        self._gangs_about: bool | None = None
        self._within_reach: int | None = None

    def stands_back(self, run: Run, lane: Lane, free: int) -> bool:
        """With so many GPUs free it would leave none to short runs, nor would those of its lane that came later."""
        return self._stands_back(lane, auto.key(self.snap.policy, run)[0], free)

    def all_stand_back(self, kind: Kind, free: int) -> bool:
        """The same of whole lanes at once."""
        return self._stands_back(kind, kind.oldest, free)

    def _stands_back(self, some: Lane | Kind, since: float, free: int) -> bool:
        gpus = some.request.gpus
        if not self.kept or not some.band[auto.STAYS] or not gpus or self._is_gang(gpus):
            return False
        if free + self.within_reach() - gpus >= self.kept or gpus > self._layout.in_service - self.kept:
            return False
        until = since + min(express.COURTESY * auto.length_s(some.band), express.MOST_S)
        if until <= self.snap.now or self.gangs_about():
            return False
        self.until = until if self.until is None else min(until, self.until)
        return True

    def missing(self) -> int:
        """GPUs that must be free for short runs, beside those that can be made so."""
        return max(0, self.kept - self.within_reach())

    def within_reach(self) -> int:
        """GPUs of those that can be stopped for a short run. Who stops already does so for somebody else."""
        if self._within_reach is None:
            runs = [self.snap.runs[run_id] for run_id in self.snap.stoppable]
            able = (run for run in runs if run.attempt is not None and run.attempt.stop is None)
            self._within_reach = sum(run.spec.request.gpus for run in able if express.yields(self.snap.policy, run))
        return self._within_reach

    def started(self, run: Run) -> None:
        gpus = run.spec.request.gpus
        if self.kept and express.yields(self.snap.policy, run):
            self._within_reach = self.within_reach() + gpus

    def gangs_about(self) -> bool:
        """Somebody waits for a whole node, or half of all GPUs are held by those that have one."""
        if self._gangs_about is None:
            waiting = (kind for kind in self.snap.queue.kinds() if not any(kind.band[auto.PARTS :]))
            gangs = (kind for kind in waiting if self._is_gang(kind.request.gpus))
            self._gangs_about = any(self._waits_for_room(kind) for kind in gangs) or self._gangs_hold_half()
        return self._gangs_about

    def _waits_for_room(self, kind: Kind) -> bool:
        """Whether one of them could start if there were room: a cap or the owner's limits may keep them for ever."""
        return any(self._is_allowed(lane) for lane in kind.lanes.values())

    def _is_allowed(self, lane: Lane) -> bool:
        snap = self.snap
        if lane.group in snap.caps and snap.groups.get(lane.group, 0) >= snap.caps[lane.group]:
            return False
        load = snap.load.get(lane.user) or Load()
        return over(snap.policy.limits_of(lane.user), load, lane.request.gpus) is Over.NOTHING

    def _gangs_hold_half(self) -> bool:
        held = (self.snap.runs[run_id].spec.request.gpus for _, run_id in self.snap.timeline)
        return 2 * sum(gpus for gpus in held if self._is_gang(gpus)) >= self._layout.in_service

    def _is_gang(self, gpus: int) -> bool:
        return 1 < self._layout.max_gpus <= gpus
