"""One way things may go: `decide` itself, run forward on a fork of the state.

Nothing is decided here. What has to be assumed is handed in: how long each run lasts. A run that is asked to make way
ends with its grace and stands in line again; nobody new comes. A run that outlived its kill does not end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from rota.core import events as e
from rota.core.decide import decide
from rota.core.grace import kill_at, longest_s
from rota.core.ids import attempt_id
from rota.core.overdue import has_outlived_kill
from rota.core.plan import Plan, Preempt
from rota.core.preempt import request
from rota.core.progress import done_s
from rota.core.reduce import reduce
from rota.core.resources import Placement, gpu_count
from rota.core.run import Cause, Exit, Run, RunState
from rota.core.snapshot import snapshot
from rota.core.state import State

Lasts = Callable[[Run, float], float]  # (run, seconds of it that are done) -> seconds it goes on from there
LOOKS = 100  # passes at one moment: each of them may stop somebody
BUDGET = 800_000  # what a question may cost; one is about a microsecond

_AFTER = {Cause.CANCELLED: RunState.CANCELLED, Cause.PREEMPTED: RunState.QUEUED}


class Walk:
    def __init__(self, state: State, now: float, lasts: Lasts) -> None:
        self.world = state.fork()
        self.world.paused = False
        self.now = max(now, state.at)
        self.starts: dict[str, float] = {}  # the first of each run
        self.cost = 0  # so far; counted, not timed, so that the same question has the same answer
        self.over = False  # nothing will happen any more
        self._lasts = lasts
        self._decided = False
        self._least = pass_cost(self.world)
        self._look_again: float | None = None
        # a stop brings an end forward; inf = it outlived its kill
        active = [*(run_id for _, run_id in self.world.timeline), *self.world.elsewhere]
        self._due = {run_id: self._end_of(self.world.runs[run_id]) for run_id in active}
        self._ends = [(end, run_id) for run_id, end in self._due.items() if end < math.inf]
        heapify(self._ends)

    def find(self, run_id: str, budget: int = BUDGET, until: float = math.inf) -> float | None:
        """When it starts; None = not by then, not for what it may cost, or never (`over`)."""
        most = self.cost + budget
        while run_id not in self.starts and not self.over and self.cost < most and self.now <= until:
            self.step()
        return self.starts.get(run_id)

    def step(self) -> None:
        """On to the next moment at which something happens, and what is decided then."""
        if self._decided and not self._move_on():
            self.over = True
            return
        self._decided = True
        for _ in range(LOOKS):
            plan = decide(snapshot(self.world, self.now))
            self.cost += self._least + 4 * plan.examined
            self._commit(plan)
            self._look_again = plan.look_again_at
            if not plan.preempts:  # a pass that stops somebody ends early: look again at what is left for the others
                break

    def _commit(self, plan: Plan) -> None:
        for start in plan.starts:
            run = self.world.runs[start.run_id]
            self.starts.setdefault(run.id, self.now)
            reduce(self.world, planned(run.id, run.attempts_made + 1, self.now, start.placement))
            again_s = self.world.policy.restart_cost_s if run.attained_s else 0.0
            lasts_s = again_s + self._lasts(run, run.attained_s)
            if run.spec.time_limit_s is not None:
                lasts_s = min(lasts_s, longest_s(self.world.policy, run))
            self._will_end(run.id, self.now + lasts_s)
        for victim in plan.preempts:
            self._stop(victim)

    def _stop(self, victim: Preempt) -> None:
        asked = request(self.world.policy, self.world.runs, victim, self.now)
        reduce(self.world, asked)
        due = self._due[victim.run_id]
        if due < math.inf:
            self._will_end(victim.run_id, min(due, self.now + asked.grace_s))

    def _will_end(self, run_id: str, at: float) -> None:
        self._due[run_id] = at
        heappush(self._ends, (at, run_id))

    def _move_on(self) -> bool:
        """To the next moment. False = there is none."""
        while self._ends and self._due.get(self._ends[0][1]) != self._ends[0][0]:
            heappop(self._ends)
        moments = [at for at, _ in (self._ends[:1] + self.world.delayed[:1])]
        for at in (self._look_again, self.world.next_reservation_edge(self.now)):
            if at is not None and at > self.now:
                moments.append(at)
        if not moments:
            return False
        self.now = max(self.now, min(moments))
        for one in self.world.calendar:
            if one.end <= self.now:
                reduce(self.world, e.ReservationEnded(at=self.now, reservation_id=one.id, why="over"))
        while self._ends and self._ends[0][0] <= self.now:
            end, run_id = heappop(self._ends)
            if self._due.get(run_id) == end:
                del self._due[run_id]
                self._end(run_id)
        return True

    def _end(self, run_id: str) -> None:
        run = self.world.runs[run_id]
        attempt = run.attempt
        assert attempt is not None
        stop = attempt.stop
        exit, then = Exit(Cause.EXITED, code=0), RunState.SUCCEEDED  # no ticks: nothing is learned from a guess
        if stop is not None and run.spec.holder is None:
            exit, then = Exit(stop.cause), _AFTER.get(stop.cause, RunState.FAILED)
        held_s = gpu_count(attempt.placement) * max(0.0, self.now - attempt.planned_at)
        ended = e.AttemptEnded(at=self.now, run_id=run_id, attempt_id=attempt.id, exit=exit, gpu_s=held_s, next=then)
        reduce(self.world, ended)
        self.world.touched.clear()

    def _end_of(self, run: Run) -> float:
        if has_outlived_kill(self.world.policy, run, self.now):
            return math.inf
        end = self.now + self._lasts(run, done_s(self.world.policy, run, self.now))
        killed_at = kill_at(self.world.policy, run)
        return end if killed_at is None else max(self.now, min(end, killed_at))


def pass_cost(state: State) -> int:
    """Of a pass that looks at nobody: each lane is ranked, each node copied."""
    return 60 + 2 * sum(1 for _ in state.queue.lanes()) + len(state.nodes)


def fork_cost(state: State) -> int:
    return len(state.runs) + 4 * sum(1 for _ in state.queue.lanes())


def planned(run_id: str, number: int, now: float, placement: Placement) -> e.Event:
    return e.AttemptPlanned(
        at=now, run_id=run_id, attempt_id=attempt_id(run_id, number), tick=now, fence=0, placement=placement
    )
