"""A whole house for a test: real store, real processes, simulated GPUs, a private directory, and an end that judges.

`House.finish` runs at the end of every test, whatever the test was about: live runs are ended through the front door,
and then everything that must always hold is checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any, TypeVar
from unittest.mock import patch

import rota.main
from rota.adapters.store.compare import compare
from rota.adapters.store.open import open_store
from rota.adapters.store.store import SqlStore
from rota.app.accounts import ONE_FOR_ALL
from rota.app.authz import Principal, Role
from rota.app.commands import Cancel, Command, Submit
from rota.app.errors import Conflict, NotFound
from rota.app.loop import Loop
from rota.app.ports import Clock, RunFilter, Store
from rota.app.service import Service
from rota.config import Settings
from rota.core import events as e
from rota.core.check import check
from rota.core.ids import is_attempt_id
from rota.core.resources import Request
from rota.core.run import ACTIVE, ENDED, PastAttempt, Run, RunState, Spec

ANN, BOB = Principal("ann", Role.USER), Principal("bob", Role.USER)
ROOT = Principal("root", Role.ADMIN)
PATIENCE_S = 60.0  # the machine is shared: how long a condition may take before the test gives up
SOURCES = str(Path(rota.main.__file__).parents[1])

E = TypeVar("E", bound=e.Event)
T = TypeVar("T")


def until(condition: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    """Wait until it is true, and give what it returned."""
    deadline = time.monotonic() + patience_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"still not so after {patience_s:g} s: {what}"
        time.sleep(0.005)


class House:
    def __init__(self, where: Path, nodes: int = 2, gpus: int = 4) -> None:
        self.where = where
        self.data = where / "data"
        # a low floor, because what is set aside for a full disk goes by it, and is written at each start
        self.settings = Settings(self.data, simulated=(nodes, gpus), disk_floor_mb=16)
        self.clock: Callable[[], Clock] | None = None  # instead of the system's
        self.wrap: Callable[[SqlStore], Store] | None = None  # around the real store
        self.accounts = ONE_FOR_ALL  # as of a server that is not root, whoever runs the tests
        self.rota: Service
        self.parts: rota.main.Rota
        self._stack: ExitStack | None = None
        where.mkdir(exist_ok=True)

    # -- open and close ---------------------------------------------------------------------------------------------
    def open(self) -> House:
        with ExitStack() as stack:
            stack.enter_context(patch.object(rota.main, "_accounts", lambda settings: self.accounts))
            # Nothing is foretold, and so written down, unasked: a slow test must not find more than it did.
            stack.enter_context(patch.object(rota.main, "SAMPLE_EVERY_S", 3600.0))
            if self.clock is not None:
                stack.enter_context(patch.object(rota.main, "SystemClock", self.clock))
            if self.wrap is not None:
                wrap = self.wrap
                stack.enter_context(patch.object(rota.main, "open_store", lambda where: wrap(open_store(where))))
            with ExitStack() as inner:
                self.parts = inner.enter_context(rota.main.open_rota(self.settings))
                self.rota = self.parts.service
                self._stack = inner.pop_all()
        return self

    def close(self) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()

    def reopen(self) -> House:
        self.close()
        return self.open()

    @property
    def is_open(self) -> bool:
        return self._stack is not None

    @property
    def loop(self) -> Loop:
        return self.rota._loop

    @property
    def store(self) -> Store:
        return self.loop.store

    # -- commands ---------------------------------------------------------------------------------------------------
    def do(self, command: Command, who: Principal = ROOT) -> Any:
        return self.rota.do(who, command, PATIENCE_S)

    def spec(self, line: str | Sequence[str], gpus: int = 1, **more: Any) -> Spec:
        argv = ("/bin/sh", "-c", line) if isinstance(line, str) else tuple(line)
        return Spec(**{"name": "t", "argv": argv, "workdir": str(self.where), "request": Request(gpus=gpus), **more})

    def submit(
        self,
        line: str | Sequence[str],
        gpus: int = 1,
        who: Principal = ANN,
        *,
        held: bool = False,
        key: str = "",
        **more: Any,
    ) -> str:
        run: Run = self.do(Submit(self.spec(line, gpus, **more), held=held, key=key), who)
        return run.id

    def sleeper(self, gpus: int = 1, who: Principal = ANN, **more: Any) -> str:
        """Runs until somebody ends it."""
        return self.submit(("/bin/sleep", "100000"), gpus, who, **more)

    def running(self, gpus: int = 1, who: Principal = ANN, **more: Any) -> str:
        return self.in_state(self.sleeper(gpus, who, **more), RunState.RUNNING)

    def gated(self, gpus: int = 1, who: Principal = ANN, after: str = "", **more: Any) -> tuple[str, Gate]:
        """Runs until its gate is opened."""
        gate = Gate(self.where / f"gate-{os.urandom(4).hex()}")
        return self.submit(f"read x < {gate.path}; {after}", gpus, who, **more), gate

    @contextlib.contextmanager
    def occupied(self) -> Iterator[None]:
        """The loop is busy: whatever is sent inside comes to it as one batch."""
        begun, done = Event(), Event()

        def hold(desk: object) -> None:
            begun.set()
            assert done.wait(PATIENCE_S)

        held = self.loop.call(hold)
        assert begun.wait(PATIENCE_S)
        try:
            yield
        finally:
            done.set()
            held.result(PATIENCE_S)

    def settled(self) -> None:
        """Whatever was sent before is done, and everybody who listens was told of it."""
        self.loop.call(lambda desk: None).result(PATIENCE_S)

    # -- looking ----------------------------------------------------------------------------------------------------
    def run(self, run_id: str) -> Run:
        return self.rota.run(run_id)

    def wait(self, run_id: str) -> Run:
        return self.rota.wait(run_id, PATIENCE_S)

    def wait_all(self, runs: Sequence[str]) -> list[Run]:
        return [self.wait(run_id) for run_id in runs]

    def in_state(self, run_id: str, *states: RunState) -> str:
        until(lambda: self.run(run_id).state in states, f"{run_id} is {states}")
        return run_id

    def events(self, kind: type[E], run_id: str | None = None) -> list[E]:
        return [s.event for s in self.store.events(0, 10_000, run_id) if isinstance(s.event, kind)]

    def starts(self) -> list[str]:
        """Runs in the order in which they were started."""
        return [event.run_id for event in self.events(e.AttemptPlanned)]

    def last_attempt(self, run_id: str) -> PastAttempt:
        return self.store.attempts(run_id)[-1]

    def output(self, run_id: str, attempt: int | None = None) -> str:
        return self.rota.log(run_id, 0, 1 << 20, attempt).content.decode()

    def free(self) -> int:
        return self.rota.ask(lambda state, now: state.board.free_gpus)

    def shim_of(self, run_id: str) -> int:
        """The pid of the supervisor of a running run."""
        from rota.adapters.backends import records

        attempt = self.run(run_id).attempt
        assert attempt is not None
        record = until(lambda: records.read(f"{self.data}/attempts/{attempt.id}/pid"), "its pid is recorded")
        assert record is not None
        return int(record["pid"])

    # -- the end of every test --------------------------------------------------------------------------------------
    def finish(self) -> None:
        if not self.is_open or not self.loop._thread.is_alive():
            with contextlib.suppress(Exception):
                self.close()
            self.clock = self.wrap = None
            self.open()
        try:
            self._end_all()
            self._judge()
        finally:
            self.close()
        left = self.leftovers()
        assert left == [], "processes of ended attempts"

    def _end_all(self) -> None:
        def live() -> list[Run]:
            return self.rota.ask(lambda state, now: [run for run in state.runs.values() if run.state not in ENDED])

        for run in live():
            with contextlib.suppress(NotFound, Conflict):
                self.do(Cancel(run.id, grace_s=0.0))
        until(lambda: not live(), "every run has ended")

    def _judge(self) -> None:
        assert self.rota.ask(lambda state, now: check(state)) == []
        load = self.store.load()
        assert compare(self.store.replay(), load) == []
        assert self.rota.ask(lambda state, now: compare(state, load)) == []
        assert check(load) == []
        assert not any(run.state in ACTIVE for run in self.store.runs(RunFilter(limit=10_000)))
        usable = sum(node.usable.bit_count() for node in load.nodes.values())
        assert self.free() == usable, "free + held = installed, and nothing is held"
        live = self.data / "live"
        until(lambda: not attempts_in(live), f"live/ is empty: {os.listdir(live)}")

    def leftovers(self) -> list[str]:
        """Processes that carry the marker of any attempt of this house. Runs are named by the time, so that of another
        test's house may have the same name; its checkpoints are elsewhere."""
        directory = self.data / "attempts"
        marks = {f"ROTA_ATTEMPT_ID={name}".encode() for name in attempts_in(directory)} if directory.exists() else set()
        return list(_marked(marks, os.fsencode(self.data))) if marks else []


def attempts_in(directory: Path) -> list[str]:
    """The attempts in attempts/ or live/, without what workers have prepared there for the next ones."""
    return [name for name in os.listdir(directory) if is_attempt_id(name)]


def _marked(marks: set[bytes], data: bytes) -> Iterator[str]:
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            with contextlib.suppress(OSError):
                env = set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
                saved = next((each for each in env if each.startswith(b"ROTA_CHECKPOINT_DIR=")), data)
                if env & marks and data in saved:
                    yield f"{pid}: {Path(f'/proc/{pid}/cmdline').read_bytes()!r}"


class Gate:
    """A FIFO on which a job waits without using the processor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        # held open for both, so that neither side ever waits for the other to come
        self._fd = os.open(path, os.O_RDWR)

    def open(self, jobs: int = 1) -> None:
        assert stat.S_ISFIFO(os.fstat(self._fd).st_mode)
        os.write(self._fd, b"go\n" * jobs)

    def __del__(self) -> None:
        os.close(self._fd)


def with_policy(house: House, **changes: Any) -> None:
    from rota.app.commands import SetPolicy

    policy = house.rota.ask(lambda state, now: state.policy)
    house.do(SetPolicy(dataclasses.replace(policy, **changes)))


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """Another process is in the middle of a write. (Locks of one process do not shut out itself.)"""
    code = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN IMMEDIATE');"
    code += "print('held', flush=True); sys.stdin.read(); c.execute('ROLLBACK'); c.close()"
    argv = [sys.executable, "-c", code, str(database)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        yield
        other.communicate()


def alive(pid: int) -> bool:
    """A process that is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
