"""A bench for the core: submits, passes and ends on a virtual clock. Each is an event; the state is checked after each.

`Lab` plays the service and the machines at once: it commits what `decide` plans, and ends attempts when their true
duration is over. It makes no decision of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rota.core import events as e
from rota.core.check import check
from rota.core.decide import decide
from rota.core.grace import at_launch_s
from rota.core.ids import attempt_id
from rota.core.node import Gpu, Node
from rota.core.plan import Plan
from rota.core.policy import Policy
from rota.core.reduce import reduce
from rota.core.resources import Placement, Request, bits, gpu_count
from rota.core.retry import retry
from rota.core.run import ENDED, Cause, Dependency, Exit, Run, RunState, Spec, When
from rota.core.snapshot import Snapshot, snapshot
from rota.core.state import State

OK = Exit(Cause.EXITED, code=0)
LOW, NORMAL, HIGH, CRITICAL = 1, 2, 3, 4


def node(name: str, gpus: int = 8, kind: str = "H100", gpu_gb: float = 80.0, **more: Any) -> Node:
    return of_gpus(name, [(kind, gpu_gb)] * gpus, **more)


def of_gpus(name: str, gpus: Iterable[tuple[str, float]], **more: Any) -> Node:
    """A node whose GPUs are named one by one as (type, memory)."""
    cards = tuple(Gpu(i, f"{name}-{i}", kind, memory) for i, (kind, memory) in enumerate(gpus))
    return Node(**{"id": name, "hostname": name, "gpus": cards, "cpus": 64, "memory_gb": 512.0, **more})


def broken(whole: Node, *indices: int) -> Node:
    """The same node with these GPUs unhealthy."""
    return replace(whole, gpus=tuple(replace(gpu, healthy=gpu.index not in indices) for gpu in whole.gpus))


def two_by_eight() -> tuple[Node, Node]:
    return node("a"), node("b")


def spec(gpus: int = 1, *, request: Request | None = None, **more: Any) -> Spec:
    return Spec(**{"name": "t", "argv": ("train",), "workdir": "/w", "request": request or Request(gpus), **more})


def where(placement: Placement | None) -> dict[str, list[int]] | None:
    """A placement as node -> GPU numbers, the way a person would say it."""
    return None if placement is None else {part.node: list(bits(part.gpus)) for part in placement}


class Lab:
    def __init__(self, *nodes: Node, policy: Policy | None = None, checked: bool = True) -> None:
        self.state = State()
        self.now = 0.0
        self.latest = 0.0  # time a pass ever saw: what was let into the queue then stays there
        self.checked = checked
        self.log: list[e.Event] = []
        self.true_s: dict[str, float] = {}  # how long each run really takes
        self.started: dict[str, list[float]] = {}
        for each in nodes:
            self.tell(e.NodeSeen(at=self.now, node=each))
        if policy is not None:
            self.set(policy)

    # -- what happens -----------------------------------------------------------------------------------------------
    def tell(self, event: e.Event) -> None:
        reduce(self.state, event)
        self.log.append(event)
        if self.checked:
            assert check(self.state) == [], f"after {event}"

    def set(self, policy: Policy) -> None:
        self.tell(e.PolicySet(at=self.now, policy=policy))

    def submit(
        self,
        gpus: int = 1,
        *,
        user: str = "ann",
        takes: float = 100.0,
        expected: float | None = None,
        held: bool = False,
        after: Iterable[str | Dependency] = (),
        **more: Any,
    ) -> str:
        """`takes` is the truth, `expected` what the scheduler believes: the truth unless told, or the limit."""
        wanted = spec(gpus, **more)
        believed = expected if expected is not None else wanted.time_limit_s or takes
        seq = self.state.next_seq
        run_id = f"{seq:012x}"
        on = tuple(Dependency(d, When.SUCCEEDED) if isinstance(d, str) else d for d in after)
        self.true_s[run_id] = takes
        self.tell(
            e.RunSubmitted(
                at=self.now,
                run_id=run_id,
                seq=seq,
                user=user,
                spec=wanted,
                held=held,
                waiting_on=on,
                expected_s=believed,
                expected_from="estimate",
            )
        )
        return run_id

    def plan(self) -> Plan:
        return decide(self.snap())

    def step(self) -> Plan:
        """One pass, committed."""
        plan = self.plan()
        for start in plan.starts:
            number = self.run(start.run_id).attempts_made + 1
            self.begin(start.run_id, attempt_id(start.run_id, number), start.placement)
        for preempt in plan.preempts:
            victim = self.run(preempt.run_id)
            self.stop(victim.id, Cause.PREEMPTED, for_run=preempt.for_run)
        return plan

    def begin(self, run_id: str, attempt: str, placement: Placement) -> None:
        self.tell(
            e.AttemptPlanned(
                at=self.now,
                run_id=run_id,
                attempt_id=attempt,
                tick=self.now,
                fence=1,
                placement=placement,
                grace_s=at_launch_s(self.state.policy, self.run(run_id).spec),
            )
        )
        self.tell(e.AttemptStarted(at=self.now, run_id=run_id, attempt_id=attempt, pid=1))
        self.started.setdefault(run_id, []).append(self.now)

    def stop(self, run_id: str, cause: Cause, for_run: str = "") -> None:
        run = self.run(run_id)
        assert run.attempt is not None
        self.tell(
            e.StopRequested(
                at=self.now,
                run_id=run_id,
                attempt_id=run.attempt.id,
                cause=cause,
                signal=15,
                grace_s=run.spec.grace_s,
                for_run=for_run,
            )
        )

    def end(self, run_id: str, exit: Exit = OK, gpu_s: float | None = None) -> None:
        """The attempt is dead; whether there is another one is `retry`'s to say."""
        run = self.run(run_id)
        assert run.attempt is not None
        again = retry(exit, run, self.state.policy)
        final = {Cause.CANCELLED: RunState.CANCELLED, Cause.LOST: RunState.LOST}.get(exit.cause, RunState.FAILED)
        held = gpu_count(run.attempt.placement) * max(0.0, self.now - run.attempt.planned_at)
        self.tell(
            e.AttemptEnded(
                at=self.now,
                run_id=run_id,
                attempt_id=run.attempt.id,
                exit=exit,
                gpu_s=held if gpu_s is None else gpu_s,
                next=RunState.SUCCEEDED if exit.ok else RunState.QUEUED if again.again else final,
                why=again.why,
                not_before=self.now + again.delay_s if again.delay_s else 0.0,
                counts=again.counts,
            )
        )

    # -- the clock --------------------------------------------------------------------------------------------------
    def until(self, then: float) -> None:
        """Let time pass: attempts end when they must, and every change is followed by a pass."""
        self.step()
        while True:
            moments = [self.ends_at(run) for run in self.active()] + [at for at, _ in self.state.delayed[:1]]
            soonest = min((at for at in moments), default=then)
            if soonest > then or not moments:
                break
            self.now = max(self.now, soonest)
            for run in self.active():
                if self.ends_at(run) <= self.now:
                    stop = run.attempt.stop if run.attempt else None
                    self.end(run.id, OK if stop is None else Exit(stop.cause))
            self.step()
        self.now = max(self.now, then)

    def follow(self, then: float) -> None:
        """As `until`, with a pass also whenever the last one said so."""
        plan = self.plan()
        while self.now < then:
            self.until(min(then, plan.look_again_at or then))
            plan = self.step()

    def ends_at(self, run: Run) -> float:
        assert run.attempt is not None
        end = run.attempt.planned_at + self.true_s[run.id]
        stop = run.attempt.stop
        return end if stop is None else min(end, stop.at + stop.grace_s)

    # -- what is so -------------------------------------------------------------------------------------------------
    def snap(self) -> Snapshot:
        self.latest = max(self.latest, self.now)
        return snapshot(self.state, self.now)

    def run(self, run_id: str) -> Run:
        return self.state.runs[run_id]

    def active(self) -> list[Run]:
        return [self.state.runs[run_id] for _, run_id in self.state.timeline]

    def first_start(self, run_id: str) -> float | None:
        starts = self.started.get(run_id)
        return starts[0] if starts else None

    def held_gpus(self, run_id: str) -> dict[str, list[int]] | None:
        attempt = self.run(run_id).attempt
        return None if attempt is None else where(attempt.placement)

    def all_ended(self) -> bool:
        return all(run.state in ENDED for run in self.state.runs.values())
