"""A Lab in which work is kept: whoever saves goes on where it was, after paying for a restart. Stops take no time, or
as long as the grace that the runs are given: then passes go on while somebody is on the way out, as on a live server.

At every moment it decides again and again until a pass has nothing to say, as the simulator does, and it counts who was
started and stopped in that one moment. What comes to pass is written down, for properties to look at.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from rota.core.plan import Plan
from rota.core.progress import gained_s
from rota.core.run import Cause, Exit, Run
from tests.props.preempting import judge_fillers, judge_stops
from tests.unit.core.kit import OK, Lab

KINDS: list[dict[str, Any]] = [
    {"preemptible": True, "saves": True},
    {"preemptible": True},
    {},
    {"preemptible": True, "filler": True, "checkpoint_signal": 9},
]
MOST_PASSES = 60
MOST_MOMENTS = 1000


@dataclass(frozen=True, slots=True)
class Stopped:
    at: float
    run_id: str
    for_run: str
    starts: int  # of the run until then: it may have started in the very moment in which it is stopped


class Stage(Lab):
    def __init__(self, *args: Any, judged: bool = True, grace_s: float = 0.0, **more: Any) -> None:
        super().__init__(*args, **more)
        self.judged, self.grace_s = judged, grace_s
        self.stops: list[Stopped] = []
        self.look_at: float | None = None

    def step(self) -> Plan:
        started, stopped = Counter[str](), Counter[str]()
        for _ in range(MOST_PASSES):
            if self.judged:
                judge_stops(self, self.plan())
                judge_fillers(self)
            plan = super().step()
            for preempt in plan.preempts:
                starts = len(self.started[preempt.run_id])
                self.stops.append(Stopped(self.now, preempt.run_id, preempt.for_run, starts))
                if not self.grace_s:
                    self.end(preempt.run_id, Exit(Cause.PREEMPTED))
            started.update(start.run_id for start in plan.starts)
            stopped.update(preempt.run_id for preempt in plan.preempts)
            if not plan.starts and not plan.preempts:
                self.look_at = plan.look_again_at
                # once for each priority above its own, where the order does not go by priority
                assert max(stopped.values(), default=0) <= 3, f"stopped again and again at {self.now}"
                again = [run_id for run_id, times in started.items() if times > 1 + stopped[run_id]]
                assert not again, f"started again and again at {self.now}"
                return plan
        raise AssertionError(f"does not come to rest at {self.now}")

    def until(self, then: float) -> None:
        self.step()
        for _ in range(MOST_MOMENTS):
            moments = [self.ends_at(run) for run in self.active()]
            moments += [] if self.look_at is None else [max(self.look_at, self.now + 1.0)]
            soonest = min(moments, default=then)
            if soonest > then or not moments:
                self.now = max(self.now, then)
                return
            self.now = max(self.now, soonest)
            for run in self.active():
                if self.ends_at(run) <= self.now:
                    assert run.attempt is not None
                    self.end(run.id, OK if run.attempt.stop is None else Exit(run.attempt.stop.cause))
            self.step()
        raise AssertionError(f"nothing has come of {MOST_MOMENTS} moments, {self.now} is the last")

    def ends_at(self, run: Run) -> float:
        assert run.attempt is not None
        cost = self.state.policy.restart_cost_s if run.attempt.number > 1 and run.spec.saves else 0.0
        end = run.attempt.planned_at + cost + max(1.0, self.true_s[run.id] - run.attained_s)
        stop = run.attempt.stop
        return end if stop is None else min(end, stop.at + stop.grace_s)

    def kept(self, run: Run) -> float:
        """What its attempts so far must have kept, counted anew."""
        policy = self.state.policy
        ran = [
            (past.number, past.ended_at - past.planned_at) for past in run.past if past.exit.cause is Cause.PREEMPTED
        ]
        return sum(gained_s(policy, number, ran_s) for number, ran_s in ran) if run.spec.saves else 0.0


@dataclass(frozen=True, slots=True)
class Comer:
    """Somebody's submit, some seconds after the last one."""

    later: float
    gpus: int
    takes: float
    declared: float
    user: str
    priority: int
    kind: int

    def submit(self, stage: Stage) -> str:
        return stage.submit(
            self.gpus,
            takes=self.takes,
            time_limit_s=self.declared,
            user=self.user,
            priority=self.priority,
            grace_s=stage.grace_s,
            **KINDS[self.kind],
        )


TAKES = st.sampled_from([5.0, 100.0, 900.0, 4000.0, 30_000.0])


def comers(most: int = 14, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Comer]]:
    takes: st.SearchStrategy[tuple[float, float]] = st.tuples(TAKES, st.sampled_from([1.0, 4.0, 0.5]))
    fields: dict[str, st.SearchStrategy[Any]] = {
        "later": st.sampled_from([0.0, 0.0, 1.0, 61.0, 600.0, 5000.0]),
        "gpus": st.sampled_from([1, 2, 4, 8, 3]),
        "user": st.sampled_from(["ann", "ben"]),
        "priority": st.sampled_from([2, 2, 2, 1, 3, 4]),
        "kind": st.sampled_from([0, 0, 0, 1, 2, 3]),
        **fixed,
    }
    one = st.builds(lambda times, **rest: Comer(takes=times[0], declared=times[0] * times[1], **rest), takes, **fields)
    return st.integers(1, most).flatmap(lambda size: st.lists(one, min_size=size, max_size=size))
