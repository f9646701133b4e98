"""The whole system on a virtual clock in one thread: real loop, real store, simulated machine, seeded faults.

Faults: reports dropped, doubled, late and out of order; supervisors killed; the server killed before or after a commit;
the store busy or full; GPUs falling ill and nodes flapping; the wall clock jumping; the machine rebooting; people who
cancel, hold, release, reprioritise, pause and change the policy at bad moments.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rota.adapters.backends.simulated import SimulatedBackend, World
from rota.adapters.clock import ManualClock
from rota.adapters.store.compare import compare
from rota.adapters.store.open import open_store
from rota.app import commands as c
from rota.app.authz import Principal, Role
from rota.app.checkpoint_dirs import CheckpointDirs
from rota.app.desk import Desk
from rota.app.dispatch import Site
from rota.app.errors import Refused
from rota.app.loop import Loop
from rota.app.ports import KeyRecord, Report, StoreBusy, StoreFull
from rota.app.service import HANDLERS, Service
from rota.app.trials import copied
from rota.core.check import check
from rota.core.events import Event
from rota.core.node import Node, simulated_cluster
from rota.core.policy import Backfill, Limits, Ordering, Policy
from rota.core.resources import Request
from rota.core.run import ENDED, Dependency, Spec, When
from rota.core.state import State

ADMIN = Principal("admin", Role.ADMIN)
GROUPS = ["", "s1", "s2"]


class Crash(Exception):
    """The server is killed here."""


class FaultyStore:
    """The real store, with a finger in the door."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.next_fault = ""

    def append(self, events: Sequence[Event], state: State, keys: Sequence[KeyRecord] = ()) -> None:
        fault, self.next_fault = self.next_fault, ""
        match fault:
            case "busy":
                raise StoreBusy("somebody holds it")
            case "full":
                raise StoreFull("no space left")
            case "crash before":
                raise Crash
        self._store.append(events, state, keys)
        if fault == "crash after":
            raise Crash

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class System:
    def __init__(self, where: Path, seed: int) -> None:
        self.rnd = random.Random(seed)
        self.path = where / f"{seed}.db"
        self.clock = ManualClock()
        self.world = World(self.clock, launch_s=lambda: self.rnd.choice([0.001, 0.01, 1.0, 30.0]))
        self.nodes: list[Node] = list(simulated_cluster(self.rnd.randint(1, 4), self.rnd.choice([1, 2, 8])))
        self.acknowledged: dict[str, str] = {}  # run -> "submitted" or "cancelled"
        self.late: list[tuple[float, Report]] = []
        self.faults = True
        self.boots = 0
        self.loop: Loop
        self.store: FaultyStore
        self.start()

    # -- the server -------------------------------------------------------------------------------------------------
    def start(self) -> None:
        while True:
            self.store = FaultyStore(open_store(self.path))
            self.loop = Loop(
                self.store,
                SimulatedBackend(self.world),
                clock=self.clock,
                new_id=lambda now: f"{self.rnd.randrange(1 << 48):012x}",
                site=Site(CheckpointDirs("/nowhere")),
                on_fatal=lambda error: None,
            )
            self.rota = Service(self.loop)
            try:
                if self.faults and self.rnd.random() < 0.2:
                    self.store.next_fault = self.rnd.choice(["crash before", "crash after"])
                self.loop.take_over()
                self.world.deliver = self.deliver
                self.see_nodes()
                return
            except Crash:
                self.store.close()

    def kill(self) -> None:
        self.world.deliver = None
        self.late.clear()
        self.store.close()

    def restart(self) -> None:
        self.kill()
        self.clock.advance(self.rnd.choice([0.0, 1.0, 100.0]))
        self.world.pump()
        self.start()

    def turn(self) -> None:
        try:
            self.loop.turn()
        except Crash:
            self.restart()
            return
        if not self.loop.degraded:
            wrong = check(self.loop.state)
            assert wrong == [], wrong
            if self.rnd.random() < 0.1:
                self.look()

    def look(self) -> None:
        """What is shown is what is durable, and it adds up."""
        view, state = self.rota.view(), self.loop.state
        assert view.version == state.version
        assert view.runs == state.runs
        assert (len(view.queue()) + len(view.held()), len(view.active())) == (state.waiting, state.active)
        assert view.free_gpus() == state.board.free_gpus
        if self.rnd.random() < 0.2:
            assert self.rota.tally().counts == self.store.counts()
            assert [view.position(run.id) for run in view.queue()] == list(range(1, len(view.queue()) + 1))

    def deliver(self, report: Report) -> None:
        if not self.faults:
            self.loop.report(report)
            return
        match self.rnd.randrange(10):
            case 0:
                return  # lost on the way
            case 1:
                self.loop.report(report)
                self.loop.report(report)
            case 2 | 3:
                self.late.append((self.clock.tick() + self.rnd.expovariate(1 / 20), report))
            case _:
                self.loop.report(report)

    def see_nodes(self) -> None:
        from rota.app.operate import see_nodes

        self.call(lambda desk: see_nodes(desk, self.nodes))

    def call(self, work: Any) -> Any:
        """Have it done within one turn; None when it was refused or the server died over it."""
        answer = self.loop.call(work)
        self.turn()
        if not answer.done() or answer.exception() is not None:
            assert not answer.done() or isinstance(answer.exception(), Refused), answer.exception()
            return None
        return answer.result()

    def do(self, command: Any, who: Principal = ADMIN) -> Any:
        return self.call(lambda desk: self.handle(desk, who, command))

    def handle(self, desk: Desk, who: Principal, command: Any) -> Any:
        """Now and then tried out first: a trial writes nothing and foretells whether the real thing is refused.
        And a refusal has written nothing."""
        handler, before = HANDLERS[type(command)], (desk.state.version, len(desk.events), len(desk.keys))
        foretold = None
        if self.rnd.random() < 0.2 and not (desk.events or desk.keys):  # what the batch has is not in the store yet
            try:
                handler(desk.trial(copied(desk.state)), who, command)
                foretold = "done"
            except Refused as refusal:
                foretold = refusal.message
            assert (desk.state.version, len(desk.events), len(desk.keys)) == before
        try:
            answer = handler(desk, who, command)
        except Refused as refusal:
            assert (desk.state.version, len(desk.events), len(desk.keys)) == before, command
            assert foretold in (None, refusal.message)
            raise
        assert foretold in (None, "done")
        return answer

    # -- what happens -----------------------------------------------------------------------------------------------
    def step(self) -> None:
        acts = [self.submit, self.submit, self.submit, self.fiddle, self.wait, self.wait, self.wait]
        if self.faults:
            acts += [self.trouble]
        self.rnd.choice(acts)()

    def wait(self) -> None:
        due = self.world.next_due()
        step = self.rnd.choice([0.01, 1.0, 30.0])
        self.clock.advance(max(0.0, due - self.clock.tick()) if due and self.rnd.random() < 0.7 else step)
        self.world.pump()
        arrived = [entry for entry in self.late if entry[0] <= self.clock.tick()]
        self.late = [entry for entry in self.late if entry[0] > self.clock.tick()]
        for _, report in self.rnd.sample(arrived, len(arrived)):
            self.loop.report(report)
        self.turn()

    def submit(self) -> None:
        rnd = self.rnd
        live = sorted(self.loop.state.runs)
        depends: tuple[Dependency, ...] = ()
        if live and rnd.random() < 0.15:
            depends = (Dependency(rnd.choice(live), rnd.choice(list(When))),)
        most = max(len(node.gpus) for node in self.nodes) * len(self.nodes)
        spec = Spec(
            name="job",
            argv=("sim", str(rnd.choice([0.1, 1, 10, 100, 1000])), rnd.choice(["0", "0", "0", "3"])),
            workdir="/",
            request=Request(gpus=rnd.choice([0, 1, 1, 1, 2, 4, most]), cpus=rnd.choice([0, 0, 8])),
            priority=rnd.randint(1, 4),
            estimate_s=rnd.choice([None, 1.0, 50.0, 2000.0]),
            time_limit_s=rnd.choice([None, None, 20.0]),
            preemptible=rnd.random() < 0.3,
            retry_failures=rnd.random() < 0.1,
            depends_on=depends,
            group=rnd.choice(GROUPS),
        )
        if rnd.random() < 0.1:
            many = c.SubmitMany((c.Submit(spec),) * rnd.randint(1, 5), (c.Draft("sweep", rnd.choice(GROUPS), "{}"),))
            for run in self.do(many) or ():
                self.acknowledged[run.id] = "submitted"
            return
        run = self.do(c.Submit(spec, user=rnd.choice(["ash", "birch", "cedar"]), held=rnd.random() < 0.1))
        if run is not None:
            self.acknowledged[run.id] = "submitted"

    def fiddle(self) -> None:
        rnd = self.rnd
        live = sorted(self.loop.state.runs)
        run_id = rnd.choice(live) if live else "0" * 12
        node = rnd.choice(self.nodes).id
        policy = Policy(
            ordering=rnd.choice(list(Ordering)),
            backfill=rnd.choice(list(Backfill)),
            preemption=rnd.random() < 0.5,
            max_concurrent=rnd.choice([0, 0, 5]),
            limits=rnd.choice([Limits(), Limits(running=3), Limits(gpus=6)]),
            retry_base_s=rnd.choice([0.0, 5.0]),
        )
        commands = [c.Cancel(run_id), c.Cancel(run_id), c.Hold(run_id), c.Release(run_id)]
        commands += [c.Reprioritise(run_id, rnd.randint(1, 4)), c.SetPolicy(policy), c.Pause(), c.Resume()]
        ended = [name for name in self.acknowledged if name not in live]
        any_id = rnd.choice(ended) if ended and rnd.random() < 0.5 else run_id
        commands += [
            c.Edit(any_id, name=f"n{rnd.random()}", group=rnd.choice(GROUPS)),
            c.Edit(any_id, argv=("sim", "1", "0")),
        ]
        commands += [c.Archive(any_id, rnd.random() < 0.6), c.CapGroup(rnd.choice(GROUPS), rnd.randrange(4))]
        commands += [c.PutRecord(c.Draft("alert", rnd.choice("abc"), rnd.choice(["{}", ""]), any_id))]
        command = rnd.choice([*commands, c.Resume(), c.Drain(node), c.Undrain(node), c.Rerun(run_id)])
        answer = self.do(command)
        if answer is not None and isinstance(command, c.Cancel):
            self.acknowledged[run_id] = "cancelled"
        if answer is not None and isinstance(command, c.Rerun):
            self.acknowledged[answer.id] = "submitted"

    def trouble(self) -> None:
        rnd = self.rnd
        match rnd.randrange(8):
            case 0:
                self.store.next_fault = rnd.choice(["busy", "full", "crash before", "crash after"])
            case 1 | 2:
                lives = sorted(name for name, life in self.world.lives.items() if life.end is None)
                if lives:
                    self.world.lose(rnd.choice(lives))
            case 3:
                self.restart()
            case 4:
                self.clock.jump_wall(rnd.choice([-86400.0, -3600.0, 3600.0, 86400.0]))
            case 5 | 6:
                self.flap()
            case 7:
                if rnd.random() < 0.2:
                    self.reboot()

    def flap(self) -> None:
        n = self.rnd.randrange(len(self.nodes))
        node = self.nodes[n]
        if node.gpus and self.rnd.random() < 0.7:
            g = self.rnd.randrange(len(node.gpus))
            gpus = [replace(gpu, healthy=not gpu.healthy) if i == g else gpu for i, gpu in enumerate(node.gpus)]
            self.nodes[n] = replace(node, gpus=tuple(gpus))
        else:
            self.nodes[n] = replace(node, alive=not node.alive)
        self.see_nodes()

    def reboot(self) -> None:
        self.boots += 1
        self.kill()
        self.world.reboot()
        self.clock.reboot(f"boot {self.boots}")
        self.start()

    # -- the end ----------------------------------------------------------------------------------------------------
    def settle(self) -> None:
        """No more faults: everything that can end must end."""
        self.faults = False
        self.store.next_fault = ""
        self.nodes = [
            replace(node, alive=True, gpus=tuple(replace(gpu, healthy=True) for gpu in node.gpus))
            for node in self.nodes
        ]
        self.wait()
        self.restart()
        for node in self.nodes:
            self.do(c.Undrain(node.id))
        self.do(c.Resume())
        self.do(c.SetPolicy(Policy()))
        for group in GROUPS[1:]:
            self.do(c.CapGroup(group, 1))  # however tight, everybody has a turn
        for run in list(self.loop.state.runs.values()):
            if run.state == "held":
                self.do(c.Release(run.id))
        for _ in range(20_000):
            if not self.loop.state.runs:
                break
            self.clock.advance(11.0)
            self.world.pump()
            self.turn()
        assert not self.loop.state.runs, f"never ended: {list(self.loop.state.runs.values())[:3]}"
        self.judge()

    def judge(self) -> None:
        store = self.store
        assert compare(store.replay(), store.load()) == []
        for run_id, promise in self.acknowledged.items():
            run = store.run(run_id)
            assert run is not None, f"lost: {run_id}"
            assert run.state in ENDED
            if promise == "cancelled":
                assert run.state in ("cancelled", "succeeded"), run
            attempts = store.attempts(run_id)
            assert [a.number for a in attempts] == list(range(1, run.attempts_made + 1)), "one record per attempt"
            assert all(a.gpu_s >= 0 for a in attempts)
        assert all(life.starts <= 1 for life in self.world.lives.values()), "an attempt started twice"
        running = [name for name, life in self.world.lives.items() if life.end is None]
        assert running == [], f"left over: {running}"
        state = self.loop.state
        assert state.board.free_gpus == sum(len(node.gpus) for node in state.nodes.values())
