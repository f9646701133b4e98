"""A whole small world around the core, on a virtual clock and one thread: people, a server, machines, and bad luck.

People submit, cancel, hold, change their minds. The server runs passes, commits plans if nothing happened meanwhile,
and settles reports; it is the shortest honest version of the service. Machines run processes, keep the truth about
them, and die. Between server and machines there is mail, which is late, comes twice, overtakes and gets lost; a
reconcile every so often asks the machines what is true. All chance comes from one seeded generator, so that a seed is a
whole history.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any

from rota.core import events as e
from rota.core.ids import attempt_id, run_of
from rota.core.place import could_ever_fit
from rota.core.plan import Plan
from rota.core.policy import Policy
from rota.core.resources import Placement, bits
from rota.core.retry import RetryDecision, retry
from rota.core.run import ACTIVE, ENDED, Cause, Dependency, Exit, Run, RunState, When
from tests.props.stories import CLUSTERS, GROUPS, REQUESTS, USERS, Picker, policy_of
from tests.props.test_decide import sound
from tests.unit.core.kit import OK, Lab, broken

RECONCILE_S = 30.0
MOST_WAITING = 30


@dataclass
class Process:
    """An attempt on its machines, as it really is."""

    placement: Placement
    ends_at: float
    exit: Exit
    over: Exit | None = None  # how it ended, on record
    vanished: bool = False  # its machine died under it: there is no record


class World(Lab):
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        super().__init__(*self.chance.choice(CLUSTERS), policy=Policy(retry_base_s=1, retry_cap_s=20))
        self.mail: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.letters = 0
        self.faults = True
        self.processes: dict[str, Process] = {}  # by attempt: claimed once, never again
        self.tombs: set[str] = set()  # stopped before they were claimed
        self.stale: Plan | None = None  # a plan that somebody thinks about too long
        self.retired = 0
        self.passes = 0

    # -- the run of things ------------------------------------------------------------------------------------------
    def live(self, events: int) -> None:
        self.send(RECONCILE_S, self.reconcile)
        while len(self.log) < events:
            if self.mail and self.chance.random() < 0.55:
                self.deliver()
            else:
                self.now += self.chance.expovariate(1 / 1.5)
                self.chance.choice(PEOPLE)(self)
            if self.chance.random() < 0.6:
                self.think()

    def settle_down(self) -> None:
        """The faults stop, everything is repaired and let go; then every run that can end must end."""
        self.faults = False
        self.tell(e.SchedulingResumed(at=self.now))
        self.set(Policy(retry_base_s=1, retry_cap_s=20))
        for group in GROUPS[2:]:
            self.tell(e.GroupCapped(at=self.now, group=group, limit=1))  # however tight, all must have their turn
        for node_id, one in list(self.state.nodes.items()):
            self.tell(e.NodeSeen(at=self.now, node=replace(broken(one), alive=True, drained=False)))
            assert self.state.nodes[node_id].usable.bit_count() == len(one.gpus)
        for run in [run for run in self.state.runs.values() if run.state is RunState.HELD]:
            self.tell(e.RunReleased(at=self.now, run_id=run.id))
        self.give_up_impossible()
        self.think()
        deadline = self.now + 100_000
        while not self.all_ended():
            assert self.now < deadline, f"never ended: {[r.id for r in self.state.runs.values() if r.ended_at is None]}"
            self.deliver()
            self.think()

    def give_up_impossible(self) -> None:
        layout = self.state.board.layout
        for run in list(self.state.runs.values()):
            if run.attempt is None and run.ended_at is None and not could_ever_fit(layout, run.spec.request):
                self.cancel(run)

    def deliver(self) -> None:
        if self.mail:
            at, _, what, about = heappop(self.mail)
            self.now = max(self.now, at)
            what(*about)

    def send(self, after: float, what: Callable[..., None], *about: Any) -> None:
        self.letters += 1
        heappush(self.mail, (self.now + after, self.letters, what, about))

    def post(self, what: Callable[..., None], *about: Any) -> None:
        """Between two machines: late, and with bad luck lost or doubled."""
        luck = self.chance.random() if self.faults else 1.0
        if luck < 0.05:
            return
        for _ in range(2 if luck < 0.12 else 1):
            self.send(self.chance.choice([0.01, 0.1, 0.5, 5.0, 20.0]), what, *about)

    # -- the server -------------------------------------------------------------------------------------------------
    def think(self) -> None:
        """A pass. Now and then its commit comes late; then it counts only if nothing happened in between."""
        if self.stale is not None:
            plan, self.stale = self.stale, None
        else:
            self.passes += 1
            plan = sound(self) if self.passes % 10 == 0 else self.plan()
            if self.faults and self.chance.random() < 0.1:
                self.stale = plan
                return
        if plan.version == self.state.version:
            self.commit(plan)

    def commit(self, plan: Plan) -> None:
        for start in plan.starts:
            name = attempt_id(start.run_id, self.run(start.run_id).attempts_made + 1)
            self.tell(
                e.AttemptPlanned(
                    at=self.now, run_id=start.run_id, attempt_id=name, tick=self.now, fence=1, placement=start.placement
                )
            )
            self.post(self.launch, name, start.placement)
        for preempt in plan.preempts:
            self.ask_to_stop(self.run(preempt.run_id), Cause.PREEMPTED, preempt.for_run)

    def ask_to_stop(self, run: Run, cause: Cause, for_run: str = "") -> None:
        assert run.attempt is not None
        self.stop(run.id, cause, for_run)
        self.post(self.end_politely, run.attempt.id, cause, run.spec.grace_s)

    def hear_started(self, name: str) -> None:
        run = self.state.runs.get(run_of(name))
        if run and run.attempt and run.attempt.id == name and run.state is RunState.STARTING:
            self.tell(e.AttemptStarted(at=self.now, run_id=run.id, attempt_id=name, pid=1))

    def hear_ended(self, name: str, exit: Exit) -> None:
        run = self.state.runs.get(run_of(name))
        if run is None or run.attempt is None or run.attempt.id != name:
            return  # old news
        stop = run.attempt.stop
        again = retry(exit, run, self.state.policy)
        if stop is not None and not exit.ok:
            if stop.cause is Cause.CANCELLED:
                again = RetryDecision(False, "cancelled")
            elif exit.cause in (Cause.PREEMPTED, Cause.NEVER_STARTED, Cause.LOST):
                again = RetryDecision(True, "preempted")
        final = RunState.SUCCEEDED if exit.ok else RunState.FAILED
        if not exit.ok and (exit.cause is Cause.NEVER_STARTED or (stop and stop.cause is Cause.CANCELLED)):
            final = RunState.CANCELLED
        elif exit.cause is Cause.LOST:
            final = RunState.LOST
        self.tell(
            e.AttemptEnded(
                at=self.now,
                run_id=run.id,
                attempt_id=name,
                exit=exit,
                gpu_s=run.spec.request.gpus * (self.now - run.attempt.planned_at),
                next=RunState.QUEUED if again.again else final,
                why=again.why,
                not_before=self.now + again.delay_s if again.delay_s else 0.0,
                counts=again.counts,
            )
        )
        self.after_an_end(run.id)

    def after_an_end(self, run_id: str) -> None:
        if self.run(run_id).state in ENDED:
            for waiter in sorted(self.state.dependents.get(run_id, ())):
                self.tell(e.RunEnded(at=self.now, run_id=waiter, state=RunState.CANCELLED, why="dependency"))
                self.after_an_end(waiter)

    def reconcile(self) -> None:
        """What is true on the machines? Repairs whatever the mail lost."""
        for run in [self.state.runs[run_id] for _, run_id in self.state.timeline]:
            attempt = run.attempt
            assert attempt is not None
            process = self.processes.get(attempt.id)
            if not all(self.up(part.node) for part in attempt.placement):
                if process is None or process.vanished:
                    self.tombs.add(attempt.id)  # fenced off: it can not be claimed any more
                    self.hear_ended(attempt.id, Exit(Cause.LOST, message="node gone"))
            elif process is None and attempt.id in self.tombs:
                self.hear_ended(attempt.id, Exit(Cause.NEVER_STARTED))
            elif process is None and attempt.stop is not None:
                self.post(self.end_politely, attempt.id, attempt.stop.cause, run.spec.grace_s)
            elif process is None:
                self.post(self.launch, attempt.id, attempt.placement)  # safe to repeat: claimed at most once
            elif process.vanished:
                self.hear_ended(attempt.id, Exit(Cause.LOST))
            elif process.over is not None:
                self.hear_ended(attempt.id, process.over)
            else:
                self.hear_started(attempt.id)
                if attempt.stop is not None:
                    self.post(self.end_politely, attempt.id, attempt.stop.cause, run.spec.grace_s)
        if self.faults:
            self.give_up_impossible()
        self.send(RECONCILE_S, self.reconcile)

    # -- the machines -----------------------------------------------------------------------------------------------
    def up(self, node_id: str) -> bool:
        one = self.state.nodes.get(node_id)
        return one is not None and one.alive

    def launch(self, name: str, placement: Placement) -> None:
        if name in self.processes or name in self.tombs or not all(self.up(part.node) for part in placement):
            return
        run = self.state.runs.get(run_of(name))
        takes = self.true_s.get(run_of(name), 1.0)
        luck = self.chance.random() if self.faults else 1.0
        exit = OK if luck > 0.15 else Exit(Cause.EXITED, code=1) if luck > 0.05 else Exit(Cause.LAUNCH_FAILED)
        self.nobody_else_uses(name, placement)
        assert run is not None
        process = Process(placement, self.now + takes, replace(exit, started_tick=0.0, ended_tick=takes))
        self.processes[name] = process
        self.send(takes, self.process_ends, name)
        self.post(self.hear_started, name)

    def nobody_else_uses(self, name: str, placement: Placement) -> None:
        """The promise itself, checked where it matters: no two living processes on one GPU."""
        wanted = {(part.node, index) for part in placement for index in bits(part.gpus)}
        for other, process in self.processes.items():
            if process.over is None and not process.vanished:
                used = {(part.node, index) for part in process.placement for index in bits(part.gpus)}
                assert not wanted & used, f"{name} and {other} on {wanted & used}"

    def process_ends(self, name: str) -> None:
        process = self.processes[name]
        if process.over is None and not process.vanished and self.now >= process.ends_at:
            process.over = process.exit
            self.post(self.hear_ended, name, process.over)

    def end_politely(self, name: str, cause: Cause, grace_s: float) -> None:
        process = self.processes.get(name)
        if process is None:
            self.tombs.add(name)
            self.post(self.hear_ended, name, Exit(Cause.NEVER_STARTED))
        elif process.over is None and not process.vanished and self.now + grace_s < process.ends_at:
            process.ends_at = self.now + grace_s
            process.exit = Exit(cause)
            self.send(grace_s, self.process_ends, name)

    # -- the people, and bad luck -----------------------------------------------------------------------------------
    def any_run(self, *states: RunState) -> Run | None:
        fitting = [run for run in self.state.runs.values() if run.state in states]
        return self.chance.choice(fitting) if fitting else None

    def someone_submits(self) -> None:
        request = self.chance.choice(REQUESTS)
        if self.state.waiting >= MOST_WAITING or not could_ever_fit(self.state.board.layout, request):
            return
        open_runs = [run.id for run in self.state.runs.values() if run.state not in ENDED]
        after = []
        if open_runs and self.chance.random() < 0.15:
            after.append(Dependency(self.chance.choice(open_runs), self.chance.choice(list(When))))
        takes = self.chance.choice([0.5, 3.0, 10.0, 40.0])
        self.submit(
            request=request,
            user=self.chance.choice(USERS),
            takes=takes,
            expected=takes * self.chance.choice([0.3, 1.0, 1.0, 4.0]),
            priority=self.chance.randint(1, 4),
            held=self.chance.random() < 0.05,
            preemptible=self.chance.random() < 0.4,
            grace_s=self.chance.choice([0.0, 2.0]),
            max_retries=self.chance.choice([0, 3]),
            after=after,
            group=self.chance.choice(GROUPS),
        )

    def someone_cancels(self) -> None:
        run = self.any_run(RunState.HELD, RunState.QUEUED, *ACTIVE)
        if run is not None:
            self.cancel(run)

    def cancel(self, run: Run) -> None:
        if run.attempt is not None:
            self.ask_to_stop(run, Cause.CANCELLED)
        elif self.run(run.id).state not in ENDED:
            self.tell(e.RunEnded(at=self.now, run_id=run.id, state=RunState.CANCELLED, why="cancelled"))
            self.after_an_end(run.id)

    def someone_holds_or_releases(self) -> None:
        run = self.any_run(RunState.QUEUED, RunState.HELD)
        if run is not None and run.state is RunState.HELD:
            self.tell(e.RunReleased(at=self.now, run_id=run.id))
        elif run is not None and self.chance.random() < 0.3:
            self.tell(e.RunHeld(at=self.now, run_id=run.id))

    def someone_reprioritises(self) -> None:
        run = self.any_run(*RunState)
        if run is not None:
            self.tell(e.RunReprioritised(at=self.now, run_id=run.id, priority=self.chance.randint(1, 4)))

    def someone_writes(self) -> None:
        luck, run = self.chance.random(), self.any_run(*RunState)
        if run is not None and luck < 0.4:
            spec = replace(run.spec, name=f"t{luck}", group=self.chance.choice(GROUPS))
            self.tell(e.RunEdited(at=self.now, run_id=run.id, spec=spec))
        elif run is not None and luck < 0.6:
            self.tell(e.RunArchived(at=self.now, run_id=run.id, archived=run.archived_at is None))
        else:
            self.tell(e.RecordPut(at=self.now, kind="alert", id="a", parent="", body="{}" if luck < 0.9 else ""))

    def someone_caps_a_sweep(self) -> None:
        self.tell(e.GroupCapped(at=self.now, group=self.chance.choice(GROUPS[2:]), limit=self.chance.randrange(4)))

    def someone_turns_a_knob(self) -> None:
        luck = self.chance.random()
        if luck < 0.4:
            policy = policy_of(Picker(256 + self.chance.getrandbits(40)))
            self.set(replace(policy, retry_base_s=1, retry_cap_s=20, auto_retry=self.chance.random() < 0.9))
        elif luck < 0.5:
            self.tell(e.SchedulingPaused(at=self.now))
        else:
            self.tell(e.SchedulingResumed(at=self.now))

    def a_node_changes(self) -> None:
        one = self.chance.choice(list(self.state.nodes.values()))
        luck = self.chance.random()
        if luck < 0.2:
            self.tell(e.NodeDrained(at=self.now, node_id=one.id))
        elif luck < 0.5:
            self.tell(e.NodeResumed(at=self.now, node_id=one.id))
        elif luck < 0.7 and one.gpus:
            self.tell(e.NodeSeen(at=self.now, node=broken(one, self.chance.randrange(len(one.gpus)))))
        elif luck < 0.85:
            self.tell(e.NodeSeen(at=self.now, node=replace(broken(one), alive=True)))
        else:
            self.a_node_dies(one.id)

    def a_node_dies(self, node_id: str) -> None:
        """With all that runs on it; a process of several nodes dies with the first of them."""
        for process in self.processes.values():
            if process.over is None and any(part.node == node_id for part in process.placement):
                process.vanished = True
        self.tell(e.NodeSeen(at=self.now, node=replace(self.state.nodes[node_id], alive=False)))
        self.send(self.chance.choice([1.0, 40.0]), self.a_node_returns, node_id)

    def a_node_returns(self, node_id: str) -> None:
        self.tell(e.NodeSeen(at=self.now, node=replace(self.state.nodes[node_id], alive=True)))

    def the_house_forgets(self) -> None:
        """Ended runs leave the state, as they do once they are durable."""
        for run in [run for run in self.state.runs.values() if run.state in ENDED]:
            if run.id not in self.state.dependents:
                self.state.retire(run.id)
                self.retired += 1


PEOPLE: list[Callable[[World], None]] = [
    *[World.someone_submits] * 10,
    *[World.someone_cancels] * 2,
    *[World.someone_holds_or_releases] * 2,
    *[World.someone_reprioritises] * 2,
    World.someone_turns_a_knob,
    World.someone_writes,
    World.someone_caps_a_sweep,
    *[World.a_node_changes] * 2,
    World.the_house_forgets,
]
