"""Reachable states, made the only way there is: by legal histories of events, chosen by Hypothesis.

A story is a cluster, a policy and a list of small numbers. Each pair of numbers is one happening (a submit, a pass, an
end, a drain, ...), read against the state as it is by then; what makes no sense there is left out. So every list of
numbers is a legal history, and a shorter or smaller list is a simpler one, which is what shrinking needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st

from rota.core import events as e
from rota.core.ids import attempt_id
from rota.core.node import Node
from rota.core.policy import Backfill, Limits, Ordering, Policy
from rota.core.resources import Request
from rota.core.run import ACTIVE, ENDED, Cause, Dependency, Exit, Run, RunState, When
from tests.unit.core.kit import OK, Lab, broken, node, of_gpus

T = TypeVar("T")


class Picker:
    """Choices out of one number. A small one picks the simple things, a larger one anything."""

    def __init__(self, number: int) -> None:
        self.number = number if number < 256 else number * 0x9E3779B97F4A7C15F39CC0605CEDC835 >> 16

    def of(self, options: Sequence[T]) -> T:
        self.number, index = divmod(self.number, len(options))
        return options[index]

    def chance(self, one_in: int) -> bool:
        return self.of(range(one_in)) == one_in - 1


CLUSTERS: list[tuple[Node, ...]] = [
    (node("a", 4),),
    (node("a"), node("b")),
    (node("a", 4), node("b", 2), node("c", 8)),
    (node("a", 4, "A100", 40.0), node("b", 4, "H100", 80.0)),
    (of_gpus("a", [("A100", 40.0), ("H100", 80.0)] * 2), of_gpus("b", [("A100", 80.0)] * 3, cpus=8, memory_gb=32.0)),
    (node("a", 2, cpus=4, memory_gb=16.0), node("cpu", 0, cpus=16), node("b", 2, cpus=8)),
    (node("a", 1), node("b", 1), node("c", 1), node("d", 1, drained=True)),
]
REQUESTS = [
    Request(1),
    Request(2),
    Request(4),
    Request(0),
    Request(8),
    Request(3),
    Request(2, nodes=2),
    Request(4, nodes=2),
    Request(1, gpu_type="h100"),
    Request(2, gpu_type="A100"),
    Request(1, gpu_memory_gb=80),
    Request(1, cpus=4),
    Request(2, cpus=6, memory_gb=12.3),
    Request(0, cpus=3, memory_gb=0.7),
    Request(6, span=True),
    Request(16),
    Request(12),
    Request(3, nodes=3, cpus=1),
    Request(4, nodes=1),
]
USERS = ["ann", "bob", "cid"]
GROUPS = ["", "", "s1", "s2"]
EXITS = [
    OK,
    Exit(Cause.EXITED, code=0, started_tick=1.0, ended_tick=9.0),
    Exit(Cause.EXITED, code=1),
    Exit(Cause.LOST),
    Exit(Cause.LAUNCH_FAILED, message="no such file"),
    Exit(Cause.TIME_LIMIT),
]
SOME_LIMITS = [Limits(), Limits(running=2), Limits(gpus=4), Limits(running=3, gpus=5, queued=9)]


def policy_of(pick: Picker) -> Policy:
    return Policy(
        ordering=pick.of(list(Ordering)),
        backfill=pick.of(list(Backfill)),
        limits=pick.of(SOME_LIMITS[:1] * 3 + SOME_LIMITS),
        preemption=pick.chance(2),
        user_limits={"ann": pick.of(SOME_LIMITS)} if pick.chance(3) else {},
        max_concurrent=pick.of([0, 0, 4]),
        backfill_depth=pick.of([1000, 3, 0]),
        aging_s=pick.of([86400.0, 50.0]),
        half_life_s=pick.of([604800.0, 60.0]),
    )


class Story(Lab):
    watch: Callable[[Story], None] | None = None  # called before every pass

    def happen(self, what: int, number: int) -> None:
        HAPPENINGS[what % len(HAPPENINGS)](self, Picker(number))

    def one(self, pick: Picker, *states: RunState) -> Run | None:
        fitting = [run for run in self.state.runs.values() if run.state in states]
        return pick.of(fitting) if fitting else None

    def submits(self, pick: Picker) -> None:
        request = pick.of(REQUESTS)
        others = [run.id for run in self.state.runs.values() if run.state not in ENDED]
        after = [Dependency(pick.of(others), pick.of(list(When)))] if others and pick.chance(5) else []
        takes = pick.of([10.0, 1.0, 40.0, 300.0])
        limited = pick.chance(3)
        self.submit(
            request=request,
            user=pick.of(USERS),
            takes=takes,
            time_limit_s=takes if limited else None,
            estimate_s=pick.of([None, takes / 2]),
            expected=pick.of([takes, takes / 2]),
            priority=pick.of([2, 1, 3, 4]),
            held=pick.chance(8),
            preemptible=pick.chance(2),
            after=after,
            grace_s=pick.of([5.0, 0.0]),
            group=pick.of(GROUPS),
        )

    def bursts(self, pick: Picker) -> None:
        for _ in range(pick.of([3, 2, 6])):
            self.submits(pick)

    def passes(self, pick: Picker) -> None:
        """A pass, committed; not every attempt has reported its start yet."""
        if self.watch is not None:
            self.watch(self)
        plan = self.plan()
        for start in plan.starts:
            name = attempt_id(start.run_id, self.run(start.run_id).attempts_made + 1)
            self.tell(
                e.AttemptPlanned(
                    at=self.now, run_id=start.run_id, attempt_id=name, tick=self.now, fence=1, placement=start.placement
                )
            )
            if not pick.chance(4):
                self.tell(e.AttemptStarted(at=self.now, run_id=start.run_id, attempt_id=name, pid=1))
        for preempt in plan.preempts:
            self.stop(preempt.run_id, Cause.PREEMPTED, for_run=preempt.for_run)

    def waits(self, pick: Picker) -> None:
        self.now += pick.of([1.0, 7.0, 0.0, 33.0, 1000.0])

    def the_clock_jumps(self, pick: Picker) -> None:
        """The wall clock is set by an hour or a day, either way; the log's own time never goes back."""
        self.now = max(0.0, self.now + pick.of([3600.0, -3600.0, 86400.0, -86400.0]))

    def ends(self, pick: Picker) -> None:
        run = self.one(pick, *ACTIVE)
        if run is None or run.attempt is None:
            return
        stop = run.attempt.stop
        self.end(run.id, Exit(stop.cause) if stop and not pick.chance(4) else pick.of(EXITS))
        self.give_up_dependents(run.id)

    def give_up_dependents(self, ended: str) -> None:
        if self.run(ended).state not in ENDED:
            return
        for waiter in sorted(self.state.dependents.get(ended, ())):
            self.tell(e.RunEnded(at=self.now, run_id=waiter, state=RunState.CANCELLED, why="dependency"))
            self.give_up_dependents(waiter)

    def cancels(self, pick: Picker) -> None:
        run = self.one(pick, RunState.HELD, RunState.QUEUED, *ACTIVE)
        if run is None:
            return
        if run.attempt is None:
            self.tell(e.RunEnded(at=self.now, run_id=run.id, state=RunState.CANCELLED, why="cancelled"))
            self.give_up_dependents(run.id)
        else:
            self.stop(run.id, Cause.CANCELLED)

    def holds(self, pick: Picker) -> None:
        run = self.one(pick, RunState.QUEUED)
        if run is not None:
            self.tell(e.RunHeld(at=self.now, run_id=run.id))

    def releases(self, pick: Picker) -> None:
        run = self.one(pick, RunState.HELD)
        if run is not None:
            self.tell(e.RunReleased(at=self.now, run_id=run.id))

    def reprioritises(self, pick: Picker) -> None:
        run = self.one(pick, *RunState)
        if run is not None:
            self.tell(e.RunReprioritised(at=self.now, run_id=run.id, priority=pick.of([1, 2, 3, 4])))

    def edits(self, pick: Picker) -> None:
        run = self.one(pick, *RunState)
        if run is not None:
            spec = replace(run.spec, group=pick.of(GROUPS), name=pick.of(["t", "u"]), labels={"a": "b"})
            self.tell(e.RunEdited(at=self.now, run_id=run.id, spec=spec))

    def archives(self, pick: Picker) -> None:
        run = self.one(pick, *RunState)
        if run is not None:
            self.tell(e.RunArchived(at=self.now, run_id=run.id, archived=run.archived_at is None))

    def caps(self, pick: Picker) -> None:
        self.tell(e.GroupCapped(at=self.now, group=pick.of(GROUPS[2:]), limit=pick.of([1, 2, 0, 5])))

    def is_written_down(self, pick: Picker) -> None:
        self.tell(e.RecordPut(at=self.now, kind="alert", id=pick.of(["a", "b"]), parent="", body=pick.of(["{}", ""])))

    def is_carried_elsewhere(self, pick: Picker) -> None:
        """Somebody reports that it runs, on no GPU of ours."""
        run = self.one(pick, RunState.QUEUED)
        if run is None or run.waiting_on:
            return
        name = attempt_id(run.id, run.attempts_made + 1)
        self.tell(
            e.AttemptPlanned(
                at=self.now, run_id=run.id, attempt_id=name, tick=self.now, fence=1, placement=(), reported=True
            )
        )
        self.tell(e.AttemptStarted(at=self.now, run_id=run.id, attempt_id=name, pid=0))

    def nodes_change(self, pick: Picker) -> None:
        nodes = list(self.state.nodes.values())
        if not nodes or pick.chance(6):
            self.tell(e.NodeSeen(at=self.now, node=node(f"new{len(self.log)}", pick.of([2, 4, 8]))))
            return
        which = pick.of(nodes)
        how = pick.of(["drain", "resume", "sick", "well", "dies", "smaller", "removed"])
        if how == "drain":
            self.tell(e.NodeDrained(at=self.now, node_id=which.id))
        elif how == "resume":
            self.tell(e.NodeResumed(at=self.now, node_id=which.id))
        elif how == "removed":
            self.tell(e.NodeRemoved(at=self.now, node_id=which.id))
        else:
            sick = broken(which, pick.of([0, 1, 2]))
            well = replace(broken(which), alive=True)
            smaller = replace(which, gpus=which.gpus[:-1], cpus=which.cpus // 2)
            seen = {"sick": sick, "well": well, "dies": replace(which, alive=False), "smaller": smaller}
            self.tell(e.NodeSeen(at=self.now, node=seen[how]))

    def policy_changes(self, pick: Picker) -> None:
        self.set(policy_of(pick))

    def switches(self, pick: Picker) -> None:
        event = e.SchedulingPaused if pick.chance(4) else e.SchedulingResumed
        self.tell(event(at=self.now))


HAPPENINGS = [
    Story.submits,
    Story.submits,
    Story.submits,
    Story.bursts,
    Story.bursts,
    Story.passes,
    Story.passes,
    Story.passes,
    Story.waits,
    Story.ends,
    Story.ends,
    Story.cancels,
    Story.holds,
    Story.releases,
    Story.reprioritises,
    Story.nodes_change,
    Story.policy_changes,
    Story.switches,
    Story.the_clock_jumps,
    Story.edits,
    Story.archives,
    Story.caps,
    Story.caps,
    Story.is_written_down,
    Story.is_carried_elsewhere,
]


def stories(max_size: int = 25, watch: Callable[[Story], None] | None = None, **fixed: Any) -> st.SearchStrategy[Story]:
    """Stories up to some length; `fixed` are fields of the policy that shall not vary."""
    step = st.tuples(st.integers(0, len(HAPPENINGS) - 1), st.integers(0, 2**40))
    # Left to itself Hypothesis makes lists of five or so: too short for a story.
    steps = st.integers(0, max_size).flatmap(lambda size: st.lists(step, min_size=size, max_size=size))
    return st.builds(
        lambda cluster, policy, told: tell(cluster, policy, told, watch, fixed),
        st.integers(0, len(CLUSTERS) - 1),
        st.integers(0, 2**40),
        steps,
    )


def tell(
    cluster: int,
    policy: int,
    told: list[tuple[int, int]],
    watch: Callable[[Story], None] | None,
    fixed: dict[str, Any],
) -> Story:
    story = Story(*CLUSTERS[cluster], policy=replace(policy_of(Picker(policy)), **fixed))
    story.watch = watch
    for what, number in told:
        if fixed and HAPPENINGS[what] is Story.policy_changes:
            continue
        story.happen(what, number)
    return story
