"""simulate: the server's own State, `reduce` and `decide` on a virtual clock. Nothing is decided here.

Time goes from moment to moment in whole seconds. At each: attempts that end now, then jobs submitted now in their
order, then `decide` again and again until a pass neither starts nor stops anything. A stop takes no time, but the work
that is left costs `preempt_cost_s` more: each attempt after the first begins by restarting for that long, and one that
is stopped while it restarts has done nothing and restarts in full the next time.

The scheduler is shown what a user declared and what it learned from runs that have ended, never a true duration: what
happens later can change nothing before (tests/sim/test_blind.py). A declared time is not enforced: the trace says how
long each job ran in truth, and a job cut at a guessed limit would make a policy look better by doing less work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from heapq import heappop, heappush

from rota.core import events as e
from rota.core.decide import decide
from rota.core.expect import expect
from rota.core.ids import attempt_id
from rota.core.node import Node
from rota.core.plan import Plan, Preempt, Start
from rota.core.policy import Policy
from rota.core.preempt import request
from rota.core.reduce import reduce
from rota.core.resources import Placement, Request
from rota.core.run import Cause, Exit, RunState, Spec
from rota.core.snapshot import snapshot
from rota.core.state import State
from rota.sim.model import Job, Result, Segment, in_order

PASSES_TO_SPARE = 100  # a moment may take as many passes as there are jobs about, and these
IDLE_MOMENTS = 20_000  # in a row at which no job came or was done

Progress = Callable[[int, int], None]


class Stuck(Exception):
    """The simulation cannot go on: a policy that goes round in circles, or jobs that nothing will ever start."""


def simulate(
    jobs: Iterable[Job],
    nodes: Sequence[Node],
    policy: Policy,
    *,
    preempt_cost_s: int = 60,
    progress: Progress | None = None,
) -> Result:
    """`progress(done, all)` is called whenever time moves on."""
    world = _World(in_order(jobs), nodes, policy, preempt_cost_s)
    world.run(progress)
    return Result(
        jobs=tuple(world.jobs),
        gpus=sum(node.usable.bit_count() for node in nodes),
        segments=tuple(world.segments),
        ends=tuple(world.ends),
        stops=tuple(world.stops),
        preempt_cost_s=preempt_cost_s,
        gpus_of=tuple((node.id, node.usable.bit_count()) for node in nodes),
    )


class _World:
    def __init__(self, jobs: list[Job], nodes: Sequence[Node], policy: Policy, preempt_cost_s: int) -> None:
        self.jobs = jobs
        self.cost_s = preempt_cost_s
        self.now = 0
        self.arrived = 0  # jobs submitted so far
        self.done = 0
        self.left_s = [job.duration_s for job in jobs]  # work, without what a restart costs
        self.attempts = [0] * len(jobs)
        self.began = [0] * len(jobs)  # when the attempt that runs was started
        self.placed: list[Placement] = [()] * len(jobs)
        self.ends = [0] * len(jobs)
        self.stops = [0] * len(jobs)
        self.segments: list[Segment] = []
        self.due: list[tuple[int, int, int]] = []  # end, job, attempt; one that was stopped meanwhile counts no more
        self.look_at: int | None = None  # when the policy wants a look although nothing happens
        self.state = State()
        for node in nodes:
            reduce(self.state, e.NodeSeen(at=0.0, node=node))
        reduce(self.state, e.PolicySet(at=0.0, policy=replace(policy, restart_cost_s=float(preempt_cost_s))))

    def run(self, progress: Progress | None) -> None:
        idle = 0
        while self.done < len(self.jobs):
            self.now = self.next_moment()
            before = (self.arrived, self.done)
            self.end_due()
            self.submit_due()
            self.decide_until_quiet()
            idle = 0 if (self.arrived, self.done) != before else idle + 1
            if idle > IDLE_MOMENTS:
                raise Stuck(
                    f"at {self.now} s: the policy has looked {idle} times since a job last came or was done, and "
                    f"stopped jobs {sum(self.stops)} times in all: it goes round in circles"
                )
            if progress is not None:
                progress(self.done, len(self.jobs))

    def next_moment(self) -> int:
        while self.due and not self.runs(*self.due[0][1:]):
            heappop(self.due)
        moments = [] if self.look_at is None else [self.look_at]
        if self.due:
            moments.append(self.due[0][0])
        if self.arrived < len(self.jobs):
            moments.append(self.jobs[self.arrived].submit_s)
        if not moments:
            waiting = next(iter(self.state.runs.values()))
            raise Stuck(
                f"at {self.now} s: {len(self.state.runs)} jobs wait and nothing will start them, first "
                f"{waiting.spec.name} with {waiting.spec.request.gpus} GPUs: look at the limits of the policy"
            )
        return max(self.now, min(moments))

    def runs(self, number: int, attempt: int) -> bool:
        return self.attempts[number] == attempt and self.placed[number] != ()

    # -- what the trace does ----------------------------------------------------------------------------------------
    def end_due(self) -> None:
        while self.due and self.due[0][0] <= self.now:
            _, number, attempt = heappop(self.due)
            if self.runs(number, attempt):
                self.left_s[number] = 0
                self.ends[number] = self.now
                self.done += 1
                self.end(number, RunState.SUCCEEDED)
                self.state.retire(name(number))
        self.state.touched.clear()

    def submit_due(self) -> None:
        while self.arrived < len(self.jobs) and self.jobs[self.arrived].submit_s <= self.now:
            job = self.jobs[self.arrived]
            spec = spec_of(job)
            expected_s, source, belief = expect(self.state, job.user, spec)
            reduce(
                self.state,
                e.RunSubmitted(
                    at=float(self.now),
                    run_id=name(self.arrived),
                    seq=self.state.next_seq,
                    user=job.user,
                    spec=spec,
                    held=False,
                    waiting_on=(),
                    expected_s=expected_s,
                    expected_from=source,
                    belief=belief,
                ),
            )
            self.arrived += 1

    # -- what the policy does ---------------------------------------------------------------------------------------
    def decide_until_quiet(self) -> None:
        bound = PASSES_TO_SPARE + 4 * len(self.state.runs)
        for _ in range(bound):
            plan = decide(snapshot(self.state, float(self.now)))
            for start in plan.starts:
                self.start(start)
            for victim in plan.preempts:
                self.stop(victim)
            if not plan.starts and not plan.preempts:
                self.look_at = self.wanted_look(plan)
                return
        raise Stuck(f"at {self.now} s: {bound} passes in one second, and the policy still starts and stops jobs")

    def wanted_look(self, plan: Plan) -> int | None:
        at = plan.look_again_at
        return None if at is None else max(self.now + 1, math.ceil(at))

    def start(self, start: Start) -> None:
        number = int(start.run_id, 16)
        self.attempts[number] += 1
        attempt = self.attempts[number]
        at, tag = float(self.now), attempt_id(start.run_id, attempt)
        reduce(
            self.state,
            e.AttemptPlanned(at=at, run_id=start.run_id, attempt_id=tag, tick=at, fence=0, placement=start.placement),
        )
        reduce(self.state, e.AttemptStarted(at=at, run_id=start.run_id, attempt_id=tag, pid=0))
        self.began[number] = self.now
        self.placed[number] = start.placement
        heappush(self.due, (self.now + self.restart_s(attempt) + self.left_s[number], number, attempt))

    def stop(self, victim: Preempt) -> None:
        number = int(victim.run_id, 16)
        reduce(self.state, request(self.state.policy, self.state.runs, victim, float(self.now)))
        ran_s = self.now - self.began[number]
        self.left_s[number] -= max(0, ran_s - self.restart_s(self.attempts[number]))
        self.stops[number] += 1
        self.end(number, RunState.QUEUED)

    def restart_s(self, attempt: int) -> int:
        return self.cost_s if attempt > 1 else 0

    def end(self, number: int, then: RunState) -> None:
        """The attempt that runs is over; its GPUs are free."""
        placement, began = self.placed[number], self.began[number]
        counts = tuple((part.node, part.gpus.bit_count()) for part in placement)
        self.segments.append(Segment(number, self.attempts[number], began, self.now, counts))
        stopped = then is RunState.QUEUED
        self.placed[number] = ()
        reduce(
            self.state,
            e.AttemptEnded(
                at=float(self.now),
                run_id=name(number),
                attempt_id=attempt_id(name(number), self.attempts[number]),
                exit=Exit(
                    Cause.PREEMPTED if stopped else Cause.EXITED,
                    code=None if stopped else 0,
                    started_tick=float(began),
                    ended_tick=float(self.now),
                ),
                gpu_s=float(self.jobs[number].gpus * (self.now - began)),
                next=then,
                why="preempted" if stopped else "",
            ),
        )


def name(number: int) -> str:
    """The id of a job's run: the shape of the server's own."""
    return f"{number:012x}"


def spec_of(job: Job) -> Spec:
    return Spec(
        name=job.id,
        argv=(job.command,) if job.command else (),
        workdir="/",
        request=Request(gpus=job.gpus),
        priority=job.priority,
        time_limit_s=None if job.limit_s is None else float(job.limit_s),
        preemptible=job.preemptible,
        saves=job.preemptible,  # a trace says what may be stopped, and a stop costs what --preempt-cost says
    )
