"""A small engine around a Store for the tests: it turns choices into legal events, reduces and appends them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rota.adapters.store.store import SqlStore
from rota.app.ports import KeyRecord
from rota.core import events as e
from rota.core.check import check
from rota.core.decide import decide
from rota.core.ids import attempt_id
from rota.core.node import simulated_cluster
from rota.core.policy import Limits, Ordering, Policy
from rota.core.reduce import reduce
from rota.core.reservation import Reservation
from rota.core.reserving import choose
from rota.core.resources import Request, gpu_count
from rota.core.run import ACTIVE, ENDED, WAITING, Cause, Dependency, Exit, Run, RunState, Spec, When, satisfied
from rota.core.snapshot import snapshot
from rota.core.state import State

Choice = tuple[int, int, int]  # which step, and two numbers it may use
GROUPS = ("", "s1", "s\0é")
USERS = ("ann", "bob", "Zoë 你好")


class House:
    """`state` is the live state; what `do` was given but not yet committed waits in `pending`."""

    def __init__(self, store: SqlStore, boot_id: str = "boot") -> None:
        self.store = store
        self.state = store.load()
        self.now = max(1_000.0, self.state.at)
        self.pending: list[e.Event] = []
        self.ended: dict[str, Run] = {}  # every run that ever ended, in its last shape
        self.records: dict[tuple[str, str], tuple[int, float, str, int]] = {}  # seq, at, parent, what it says
        self.start(boot_id)

    # -- the machine ------------------------------------------------------------------------------------------------
    def start(self, boot_id: str) -> None:
        self.commit()
        epoch = self.store.begin_epoch()
        self.do(e.ServerStarted(at=self.now, epoch=epoch, boot_id=boot_id))
        self.commit()

    def do(self, *events: e.Event) -> None:
        for event in events:
            reduce(self.state, event)
            self.pending.append(event)

    def commit(self, keys: Sequence[KeyRecord] = ()) -> None:
        if self.pending:
            self.store.append(self.pending, self.state, keys)
            self.forget()

    def forget(self) -> None:
        """What the engine does once a batch is durable."""
        self.pending = []
        for run in self.state.touched.values():
            if run.state in ENDED:
                self.ended[run.id] = run
                self.state.retire(run.id)
        self.state.committed()

    def restart(self, store: SqlStore) -> None:
        self.store, self.state, self.pending = store, store.load(), []
        self.start(f"boot-{self.now}")

    # -- single moves -----------------------------------------------------------------------------------------------
    def submit(self, user: str = "ann", **spec: object) -> Run:
        seq = self.state.next_seq
        run_id = f"{seq * 0x9E3779B97F4A7C15 % (1 << 48):012x}"
        held = bool(spec.pop("held", False))
        made = replace(Spec(name=f"job-{seq}", argv=("true",), workdir="/w"), **spec)  # type: ignore[arg-type]
        known = self.state.runs
        waiting = tuple(d for d in made.depends_on if d.run_id in known and known[d.run_id].state not in ENDED)
        self.do(
            e.RunSubmitted(
                at=self.now,
                by=user,
                run_id=run_id,
                seq=seq,
                user=user,
                spec=made,
                held=held,
                waiting_on=waiting,
                expected_s=60.0,
                expected_from="default",
            )
        )
        return self.state.runs[run_id]

    def plan(self) -> list[str]:
        """Let `decide` start what it wants; the ids of the runs that start."""
        starts = decide(snapshot(self.state, self.now)).starts
        for start in starts:
            made = self.state.runs[start.run_id].attempts_made
            self.do(
                e.AttemptPlanned(
                    at=self.now,
                    run_id=start.run_id,
                    attempt_id=attempt_id(start.run_id, made + 1),
                    tick=self.now - 500.0,
                    fence=self.state.epoch,
                    placement=start.placement,
                )
            )
        return [start.run_id for start in starts]

    def begin(self, run_id: str) -> None:
        attempt = self.state.runs[run_id].attempt
        assert attempt is not None
        self.do(e.AttemptStarted(at=self.now, run_id=run_id, attempt_id=attempt.id, pid=4242))

    def finish(self, run_id: str, how: Cause = Cause.EXITED, code: int = 0, to: RunState | None = None) -> None:
        run = self.state.runs[run_id]
        attempt = run.attempt
        assert attempt is not None
        if to is None:
            to = RunState.SUCCEEDED if (how, code) == (Cause.EXITED, 0) else RunState.FAILED
        again = to is RunState.QUEUED
        self.do(
            e.AttemptEnded(
                at=self.now,
                run_id=run_id,
                attempt_id=attempt.id,
                exit=Exit(how, code, started_tick=attempt.planned_tick, ended_tick=self.now - 500.0),
                gpu_s=gpu_count(attempt.placement) * (self.now - attempt.planned_at),
                next=to,
                why="" if to is RunState.SUCCEEDED else f"{how}",
                not_before=self.now + 5 if again else 0.0,
                counts=again and how is Cause.LOST,
            )
        )
        self._end_the_hopeless(run_id)

    def end(self, run_id: str, to: RunState = RunState.CANCELLED) -> None:
        self.do(e.RunEnded(at=self.now, by="ann", run_id=run_id, state=to, why="asked"))
        self._end_the_hopeless(run_id)

    def edit(self, run: Run, **changes: object) -> None:
        self.amend(run, e.RunEdited, spec=replace(run.spec, **changes))  # type: ignore[arg-type]

    def archive(self, run: Run, archived: bool) -> None:
        self.amend(run, e.RunArchived, archived=archived)

    def amend(self, run: Run, kind: type[e.RunEvent], **what: object) -> None:
        """As the desk does: an ended run that has left the state is only rewritten in its row."""
        self.do(kind(at=self.now, by="ann", run_id=run.id, **what))
        if run.id not in self.state.runs:
            run = self.state.touched.get(run.id, run)
            if "spec" in what:
                run = replace(run, spec=what["spec"])  # type: ignore[arg-type]
            else:
                run = replace(run, archived_at=self.now if what["archived"] else None)
            self.state.touched[run.id] = run

    def _end_the_hopeless(self, run_id: str) -> None:
        """Dependents whose condition can never come true end with it."""
        run = self.state.runs[run_id]
        if run.state not in ENDED:
            return
        for waiter in sorted(self.state.dependents.get(run_id, ())):
            waits = self.state.runs[waiter].waiting_on
            if any(d.run_id == run_id and not satisfied(d.when, run.state) for d in waits):
                self.end(waiter)

    # -- random but legal -------------------------------------------------------------------------------------------
    def step(self, choice: Choice) -> None:
        which, a, b = choice
        self.now += a % 7 / 4
        moves = (
            self._submit,
            self._submit,
            self._submit,
            self._plan,
            self._plan,
            self._begin,
            self._finish,
            self._finish,
            self._hold_or_release,
            self._cancel,
            self._reprioritise,
            self._node,
            self._policy,
            self._pause,
            self._amend,
            self._amend,
            self._cap,
            self._record,
            self._reserve,
        )
        moves[which % len(moves)](a, b)
        assert check(self.state) == []

    def _some(self, states: frozenset[RunState], a: int) -> Run | None:
        found = [run for run in self.state.runs.values() if run.state in states]
        return found[a % len(found)] if found else None

    def _submit(self, a: int, b: int) -> None:
        whens = tuple(When)
        depends = tuple(
            Dependency(run_id, whens[(a + n) % 3])
            for n, run_id in enumerate(list(self.state.runs)[: b % 3])
            if b % 5 == 0
        )
        self.submit(
            USERS[a % 3],
            held=b % 6 == 0,
            request=Request(gpus=(0, 1, 2, 4, 8)[b % 5]),
            priority=1 + a % 4,
            depends_on=depends,
            env={"A": str(a % 4)} if a % 2 else {},
            labels={"sweep": f"{b}"} if b % 4 == 1 else {},
            group=GROUPS[b % 3],
            reservation=next(iter(self.state.reservations), "") if b % 7 == 0 else "",
        )

    def _plan(self, a: int, b: int) -> None:
        self.plan()

    def _begin(self, a: int, b: int) -> None:
        run = self._some(frozenset({RunState.STARTING}), a)
        if run is not None:
            self.begin(run.id)

    def _finish(self, a: int, b: int) -> None:
        run = self._some(ACTIVE, a)
        if run is None:
            return
        match b % 6:
            case 0 | 1:
                self.finish(run.id)
            case 2:
                self.finish(run.id, code=3)
            case 3:
                self.finish(run.id, Cause.LOST, to=RunState.QUEUED)
            case 4:
                self.finish(run.id, Cause.PREEMPTED, to=RunState.QUEUED)
            case _:
                self.finish(run.id, Cause.LOST, to=RunState.LOST)

    def _hold_or_release(self, a: int, b: int) -> None:
        run = self._some(WAITING, a)
        if run is None:
            return
        if run.state is RunState.HELD:
            self.do(e.RunReleased(at=self.now, by="ann", run_id=run.id))
        else:
            self.do(e.RunHeld(at=self.now, by="ann", run_id=run.id, why="wait"))

    def _cancel(self, a: int, b: int) -> None:
        run = self._some(WAITING | ACTIVE, a)
        if run is None:
            return
        if run.attempt is None:
            self.end(run.id)
        elif run.attempt.stop is None:
            stop = {"cause": Cause.CANCELLED, "signal": 15, "grace_s": 10.0}
            self.do(e.StopRequested(at=self.now, by="bob", run_id=run.id, attempt_id=run.attempt.id, **stop))  # type: ignore[arg-type]
        else:
            self.finish(run.id, Cause.CANCELLED, to=RunState.CANCELLED)

    def _reprioritise(self, a: int, b: int) -> None:
        run = self._some(WAITING, a)
        if run is not None:
            self.do(e.RunReprioritised(at=self.now, by="ann", run_id=run.id, priority=1 + b % 4))

    def _node(self, a: int, b: int) -> None:
        node = simulated_cluster(3, 4)[a % 3]
        there = self.state.nodes.get(node.id)
        if there is None:
            self.do(e.NodeSeen(at=self.now, node=node))
        elif b % 4 == 0:
            self.do(e.NodeRemoved(at=self.now, node_id=node.id))
        elif b % 4 == 1:
            self.do(e.NodeSeen(at=self.now, node=replace(there, cpus=64 + b)))
        elif there.drained:
            self.do(e.NodeResumed(at=self.now, node_id=node.id))
        else:
            self.do(e.NodeDrained(at=self.now, node_id=node.id, why="fan"))

    def _policy(self, a: int, b: int) -> None:
        ordering = tuple(Ordering)[a % 4]
        policy = Policy(
            ordering=ordering, user_limits={"ann": Limits(running=b)} if b % 2 else {}, half_life_s=60.0 + b
        )
        self.do(e.PolicySet(at=self.now, by="root", policy=policy))

    def _pause(self, a: int, b: int) -> None:
        if self.state.paused:
            self.do(e.SchedulingResumed(at=self.now))
        else:
            self.do(e.SchedulingPaused(at=self.now, why="maintenance"))

    def _amend(self, a: int, b: int) -> None:
        """A run that is there, or one that ended long ago."""
        ended = [self.state.touched.get(run_id, run) for run_id, run in self.ended.items()]
        found = ended if ended and a % 3 == 0 else list(self.state.runs.values())
        if not found:
            return
        run = found[a % len(found)]
        if b % 3 == 0:
            self.archive(run, run.archived_at is None)
        else:
            self.edit(run, name=f"job {b}", group=GROUPS[b % 3], env={"B": str(b)}, labels={"n": str(a)})

    def _cap(self, a: int, b: int) -> None:
        self.do(e.GroupCapped(at=self.now, by="ann", group=GROUPS[1 + a % 2], limit=b % 4))

    def _reserve(self, a: int, b: int) -> None:
        """Make one, or end one."""
        if self.state.calendar and b % 3 == 0:
            gone = self.state.calendar[a % len(self.state.calendar)]
            self.do(e.ReservationEnded(at=self.now, by="ann", reservation_id=gone.id, why="not needed"))
            return
        start, end = self.now + a % 5, self.now + a % 5 + 1 + b % 7
        spot = choose(self.state, Request(gpus=1 + b % 4), start, end, self.now)
        if spot is not None:
            name = f"{self.state.version:012x}"
            made = Reservation(name, USERS[a % 3], GROUPS[b % 3], start, end, spot, self.now, users=USERS[: b % 3])
            self.do(e.ReservationMade(at=self.now, by=USERS[a % 3], reservation=made))

    def _record(self, a: int, b: int) -> None:
        kind, name = ("alert", "sweep")[a % 2], f"r{a % 5}"
        body = "" if b % 4 == 0 else f'{{"n":{b}}}'
        self.do(e.RecordPut(at=self.now, by="ann", kind=kind, id=name, parent=f"p{b % 3}", body=body))
        before = self.records.pop((kind, name), None)
        if body:
            first = (self.state.version, self.now) if before is None else before[:2]
            self.records[kind, name] = (*first, f"p{b % 3}", b)


def cluster(house: House, nodes: int = 2, gpus: int = 4) -> None:
    house.do(*(e.NodeSeen(at=house.now, node=node) for node in simulated_cluster(nodes, gpus)))
    house.commit()


def live(state: State) -> set[str]:
    return {run.id for run in state.runs.values() if run.state not in ENDED}
