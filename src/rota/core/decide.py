"""decide(snapshot) -> Plan: total, deterministic, the same live and in simulation.

One pass, in policy order:

1. Runs start as long as they can be placed.
2. The first that cannot gets a reservation: the earliest moment at which it will fit (backfill.reserve). With
   preemption on, it may instead stop less important work that said it may be stopped.
3. Behind the reservation others still start if they will be done by then, or keep off the reserved GPUs.
4. The pass ends when nothing is free, the depth is used up, or nobody is left.

Resources only shrink during a pass, so a shape that could not be placed once is never tried again, and a pass over a
hundred thousand waiting runs touches few of them.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from rota.core import preempt
from rota.core.backfill import exchange, outside, reserve
from rota.core.board import Board
from rota.core.order import Key
from rota.core.place import place
from rota.core.plan import Plan, Preempt, Reserve, Start
from rota.core.policy import Backfill, Ordering
from rota.core.queue import Lane
from rota.core.quota import Over, over
from rota.core.resources import Placement
from rota.core.run import Run
from rota.core.snapshot import Snapshot
from rota.core.usage import Load, Usage

PREEMPTION_TRIES = 8  # blocked runs per pass for which victims are looked for

Entry = tuple[float, Key, str, Lane, int]  # share of the user, key, run, its lane and its place there


def decide(snap: Snapshot) -> Plan:
    if snap.paused:
        return Plan(snap.version)
    return _Pass(snap).run()


class _Pass:
    def __init__(self, snap: Snapshot) -> None:
        self.snap = snap
        self.policy = snap.policy
        self.board = snap.board.copy()
        self.outside: Board | None = None  # what is left beside the reservation
        self.reserve: Reserve | None = None
        self.starts: list[Start] = []
        self.ends: list[tuple[float, Placement]] = []  # of this pass's starts
        self.preempts: tuple[Preempt, ...] = ()
        self.preempt_tries = PREEMPTION_TRIES if self.policy.preemption else 0
        self.unplaceable: set[int] = set()  # shapes
        self.too_long: set[int] = set()  # shapes that fit only into the reservation's hole
        self.closed: set[str] = set()  # users at their limit of runs
        self.in_group: dict[str, int] = {}  # active runs of capped groups, with this pass's starts
        self.load: dict[str, Load] = {}
        self.share: dict[str, float] = {}
        self.fair = self.policy.ordering is Ordering.FAIR_SHARE
        self.room = self.policy.max_concurrent - snap.active if self.policy.max_concurrent else 1 << 62
        self.depth = self.policy.backfill_depth
        self.examined = 0
        self.stopped = False

    def run(self) -> Plan:
        heap: list[Entry] = []
        needs_gpu = True
        for lane in self.snap.queue.lanes():
            if lane.group and self.at_cap(lane.group):
                continue
            heap.append(self.entry(lane, 0))
            needs_gpu = needs_gpu and lane.request.gpus > 0
        heapify(heap)
        while heap and self.room > 0 and not self.stopped:
            if needs_gpu and self.used_up():
                break
            share, key, run_id, lane, at = heappop(heap)
            if self.fair:
                fresh = self.entry(lane, at)
                if fresh[:2] != (share, key):  # somebody started something since
                    heappush(heap, fresh)
                    continue
            if self.consider(self.snap.runs[run_id], lane):
                following = self.next_in(lane, at + 1)
                if following < len(lane.runs):
                    heappush(heap, self.entry(lane, following))
        return Plan(self.snap.version, tuple(self.starts), self.preempts, self.reserve, self.examined)

    def entry(self, lane: Lane, at: int) -> Entry:
        key, run_id = lane.runs[at]
        share = self.share_of(lane.user)
        past = self.snap.runs[run_id].past
        if past and past[-1].for_run in self.snap.queue:
            # It was stopped for a run that still waits: not before that one, whatever the order says, or the two
            # would stop and start in turns for ever.
            first = self.snap.runs[past[-1].for_run]
            turn, seq = self.snap.queue.key_of(first.id)
            share, key = max((share, key), (self.share_of(first.user), (turn, seq + 1)))
        return (share, key, run_id, lane, at)

    def used_up(self) -> bool:
        """Nothing is free, and nobody left could change that."""
        if self.board.free_gpus or self.preempt_tries:
            return False
        return self.reserve is not None or self.policy.backfill is Backfill.SKIP

    def consider(self, run: Run, lane: Lane) -> bool:
        """Start it if it can be. False = no other run of this lane can start in this pass either."""
        if lane.shape in self.unplaceable and not self.preempt_tries:
            return False
        if lane.user in self.closed or (lane.group and self.at_cap(lane.group)):
            return False
        self.examined += 1
        over_limit = over(self.policy.limits_of(run.user), self.load_of(run.user), lane.request.gpus)
        if over_limit is not Over.NOTHING:
            if over_limit is Over.RUNS:
                self.closed.add(run.user)
            return False
        if self.reserve is not None:
            return self.pass_by(run, lane)
        spot = None if lane.shape in self.unplaceable else place(self.board, lane.request)
        if spot is None:
            self.unplaceable.add(lane.shape)
            self.block(run)
            return False
        self.start(run, spot)
        return True

    def pass_by(self, run: Run, lane: Lane) -> bool:
        """Behind the reservation: only what does not delay it."""
        assert self.reserve is not None
        assert self.outside is not None
        self.depth -= 1
        if self.depth < 0:
            self.stopped = True
            return False
        if lane.shape in self.unplaceable:
            self.try_preempt(run)
            return False
        if self.snap.now + bound_s(run) <= self.reserve.at:
            spot = place(self.board, lane.request)
            if spot is None:
                self.unplaceable.add(lane.shape)
                self.try_preempt(run)
                return False
            self.start(run, spot)
            request = self.snap.runs[self.reserve.run_id].spec.request
            self.reserve = exchange(self.reserve, request, spot, self.board, self.outside)
            return True
        spot = None if lane.shape in self.too_long else place(self.outside, lane.request)
        if spot is None:
            self.too_long.add(lane.shape)
        else:
            self.start(run, spot)
        return True

    def next_in(self, lane: Lane, at: int) -> int:
        """Where to look next in a lane; long runs of a shape that only fits into the hole are passed over here."""
        if self.reserve is None or lane.shape not in self.too_long:
            return at
        window = self.reserve.at - self.snap.now
        while at < len(lane.runs) and self.depth > 0 and bound_s(self.snap.runs[lane.runs[at][1]]) > window:
            at += 1
            self.depth -= 1
        return at

    def block(self, run: Run) -> None:
        """The first that cannot start."""
        victims = self.try_preempt(run)
        if victims:
            return
        if self.policy.backfill is Backfill.NONE:
            self.stopped = True
        elif self.policy.backfill is Backfill.EASY or victims is not None:
            self.reserve = reserve(self.snap, self.board, run.id, run.spec.request, self.ends)
            if self.reserve is not None:
                self.outside = outside(self.board, self.reserve)
                # it will need its user's share of the limits then: those who pass must leave it that
                load = self.load[run.user] = self.load_of(run.user).copy()
                load.running += 1
                load.gpus += run.spec.request.gpus
                self.join_group(run.spec.group)

    def try_preempt(self, run: Run) -> tuple[Preempt, ...] | None:
        """As preempt.choose. With victims the pass ends, so that nobody else takes what they give back."""
        if self.preempt_tries <= 0:
            return None
        self.preempt_tries -= 1
        victims = preempt.choose(self.snap, self.board, run, {p.run_id for p in self.preempts})
        if victims:
            self.preempts += victims
            self.stopped = True
        return victims

    def start(self, run: Run, spot: Placement) -> None:
        self.board.take(spot)
        if self.outside is not None:
            self.outside.take(spot)
        self.starts.append(Start(run.id, spot))
        self.room -= 1
        gpus = run.spec.request.gpus
        self.ends.append((self.snap.now + run.expected_s, spot))
        load = self.load.get(run.user)
        if load is None:
            load = self.load[run.user] = self.load_of(run.user).copy()
        load.running += 1
        load.gpus += gpus
        self.join_group(run.spec.group)
        if self.fair:
            self.share[run.user] = self.share_of(run.user) + gpus * run.expected_s

    def at_cap(self, group: str) -> bool:
        cap = self.snap.caps.get(group)
        return cap is not None and self.active_in(group) >= cap

    def join_group(self, group: str) -> None:
        if group in self.snap.caps:
            self.in_group[group] = self.active_in(group) + 1

    def active_in(self, group: str) -> int:
        known = self.in_group.get(group)
        return self.snap.groups.get(group, 0) if known is None else known

    def load_of(self, user: str) -> Load:
        return self.load.get(user) or self.snap.load.get(user) or Load()

    def share_of(self, user: str) -> float:
        if not self.fair:
            return 0.0
        known = self.share.get(user)
        if known is None:
            usage = self.snap.usage.get(user, Usage())
            known = self.share[user] = usage.decayed(self.snap.now, self.policy.half_life_s)
        return known


def bound_s(run: Run) -> float:
    """How long it can take at most, as far as anybody knows."""
    return run.expected_s if run.spec.time_limit_s is None else run.spec.time_limit_s
