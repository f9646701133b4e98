"""An end is recorded within a bound though what the job controlled does not answer, and a supervisor that hangs is
named."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from rota.adapters.backends import local, procs, records, stuck, terminal
from rota.adapters.backends.local import LocalBackend
from rota.app.ports import LaunchOrder, Live, StopOrder
from rota.core.run import Cause
from tests.backends.contract import Reports, is_over
from tests.backends.helpers import LocalRig, look_here, wait_for

# Hold the lock of a FIFO, until killed.
HOLDS = """
import os, socket, sys
fifo = os.open(sys.argv[1], os.O_RDWR)
ours, theirs = socket.socketpair()
print("ready", flush=True)
os.splice(ours.fileno(), fifo, 1)
"""
WITH_A_TERMINAL = {"argv": ("sh", "-c", "echo up; read line"), "terminal": True}


class Place:
    """A backend whose supervisors wait, at one system call, for a lock that `hold` takes."""

    def __init__(self, root: Path, call: str, pipe_s: float, most_left: int, *, cgroups: bool) -> None:
        self.rig, self.reports, self.fifo = LocalRig(root, cgroups=cgroups), Reports(), str(root / "fifo")
        os.mkfifo(self.fifo, 0o600)
        blocked = str(Path(__file__).with_name("blocked.py"))
        prefix = (sys.executable, "-I", blocked, self.fifo, call, str(pipe_s), str(most_left))
        self.rig.settings["zygote_prefix"] = prefix
        self.backend = self.open()
        self.holder: subprocess.Popen[bytes] | None = None

    def open(self) -> LocalBackend:
        backend = self.rig.backend()
        backend.open(self.reports)
        return backend

    def reopen(self) -> None:
        self.backend.close()
        self.backend = self.open()

    def hold(self) -> None:
        argv = [sys.executable, "-ISc", HOLDS, self.fifo]
        self.holder = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == b"ready\n"
        pid = self.holder.pid  # it has nothing else to wait for
        wait_for(lambda: (procs.fields(pid) or [b""])[0] == b"S", "it is in the call")

    def let_go(self) -> None:
        if self.holder is not None:
            self.holder.kill()
            self.holder.communicate()
            self.holder = None

    def launch(self, **changes: Any) -> LaunchOrder:
        order = self.rig.order("succeed", **changes)
        self.backend.launch(order)
        return order

    def launch_of_another_account(self, script: str = "exit 0") -> LaunchOrder:
        """Its checkpoint directory is one of that account."""
        if os.geteuid() != 0:
            pytest.skip("needs root, to run a job as another account")
        parent = f"{self.rig.root}/checkpoints/of-nobody"
        Path(parent).parent.mkdir(exist_ok=True)
        Path(parent).parent.chmod(0o711)
        return self.launch(
            argv=("sh", "-c", script),
            account="nobody",
            workdir="/",
            checkpoint_dir=f"{parent}/1",
            checkpoint_parent=parent,
        )

    def run(self, **changes: Any) -> tuple[LaunchOrder, int]:
        order = self.launch(**changes)
        assert self.rig.end_of(self.reports, order).ok
        return order, self.supervisor(order)

    def supervisor(self, order: LaunchOrder) -> int:
        wait_for(self.rig.path(order.attempt_id, "lock").exists, "a supervisor to claim it")
        claim = records.read(str(self.rig.path(order.attempt_id, "lock"))) or {}
        return int(claim["shim"])

    def note(self, order: LaunchOrder) -> str:
        return self.rig.path(order.attempt_id, "shim.log").read_text()


@contextmanager
def place(call: str, pipe_s: float = 0.1, most_left: int = 1000, *, cgroups: bool = True) -> Iterator[Place]:
    with TemporaryDirectory() as root:  # one that other accounts reach, which those of pytest are not
        os.chmod(root, 0o711)  # noqa: S103 - as it is where a server is root's
        here = Place(Path(root), call, pipe_s, most_left, cgroups=cgroups)
        try:
            yield here
        finally:
            here.let_go()
            for stray in here.backend.strays():
                here.backend.stop(stray, StopOrder("cancelled", 9, 0.0))
                wait_for(partial(is_over, here.backend, stray), f"clean-up of {stray}")
            here.backend.close()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server names what hangs sooner than usual."""
    monkeypatch.setattr(local, "SUPERVISORS_LOOK_S", 0.05)
    monkeypatch.setattr(stuck, "AFTER_S", 0.2)


def up(here: Place, order: LaunchOrder) -> None:
    wait_for(lambda: b"up" in here.backend.read_log(order.attempt_id, 0, 100).content, "its first word")


def end_with_a_close(here: Place) -> tuple[LaunchOrder, int]:
    order = here.launch(**WITH_A_TERMINAL)
    up(here, order)
    here.hold()
    with terminal.connect(here.rig.root / "backend", order.attempt_id) as line:
        line.sendall(terminal.typed(b"\n"))
    return order, here.supervisor(order)


def end_with_a_window(here: Place) -> tuple[LaunchOrder, int]:
    order = here.launch(**WITH_A_TERMINAL)
    up(here, order)
    here.hold()
    with terminal.connect(here.rig.root / "backend", order.attempt_id) as line:
        line.sendall(terminal.window_size(33, 99))
        shim = here.supervisor(order)
        wait_for(lambda: stuck.waits(shim), "its thread to wait")
    pid = (records.read(str(here.rig.path(order.attempt_id, "pid"))) or {})["tasks"][0]
    os.kill(pid, signal.SIGUSR1)
    return order, shim


def end_with_a_directory(here: Place) -> tuple[LaunchOrder, int]:
    go = here.rig.root / "go"
    order = here.launch_of_another_account(f"until [ -e {go} ]; do sleep 0.01; done")
    here.hold()
    go.touch()
    return order, here.supervisor(order)


ENDS: dict[str, tuple[Callable[[Place], tuple[LaunchOrder, int]], str]] = {
    "close": (end_with_a_close, "its terminal does not answer"),
    "rmdir": (end_with_a_directory, "its checkpoint directory does not answer"),
}


@pytest.mark.parametrize("call", ENDS)
def test_an_end_is_recorded_though_what_its_job_had_does_not_answer(call: str) -> None:
    end, why = ENDS[call]
    with place(call) as here:
        here.run()  # its supervisors are warm
        order, shim = end(here)
        assert here.rig.end_of(here.reports, order).cause is Cause.EXITED
        assert why in here.note(order)
        wait_for(lambda: procs.fields(shim) is None or (procs.fields(shim) or [b""])[0] == b"Z", "it retires")
        assert stuck.waits(shim), "it is still there, and waits"
        for _ in range(3):
            assert here.run()[1] != shim, "it carries no other attempt"
        here.reopen()
        assert is_over(here.backend, order.attempt_id), "another server takes the record for its end"
        here.backend.forget(order.attempt_id)
        assert order.attempt_id not in here.backend.strays()
        assert here.run()[1] != shim
        here.let_go()
        wait_for(lambda: procs.start_time(shim) is None, "the supervisor is gone")
        assert is_over(here.backend, order.attempt_id)


def test_a_thread_that_waits_for_the_terminal_does_not_keep_the_end() -> None:
    """Of a window's size the account can hold the lock."""
    with place("ioctl") as here:
        order, shim = end_with_a_window(here)
        assert here.rig.end_of(here.reports, order).signal == signal.SIGUSR1
        assert "its terminal does not answer" in here.note(order)
        with pytest.raises(terminal.NoTerminal):
            terminal.connect(here.rig.root / "backend", order.attempt_id)
        assert here.run()[1] != shim


def test_one_that_cannot_say_that_it_was_through_has_been_preempted() -> None:
    with place("lexists") as here:
        order = here.launch_of_another_account("trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done")
        up(here, order)
        here.hold()
        here.backend.stop(order.attempt_id, StopOrder("preempted", grace_s=60.0))
        assert here.rig.end_of(here.reports, order).cause is Cause.PREEMPTED
        assert "its checkpoint directory does not answer" in here.note(order)


def test_a_start_for_which_the_checkpoint_directory_does_not_answer_is_tried_again() -> None:
    with place("mkdir") as here:
        here.run()  # its supervisors are warm
        here.hold()
        order = here.launch_of_another_account()
        end = here.rig.end_of(here.reports, order)
        assert (end.cause, end.shortage, end.started_tick) == (Cause.LOST, True, None)
        assert "its checkpoint directory does not answer" in end.message
        assert here.run()[1] != here.supervisor(order)
        here.let_go()
        again = here.launch_of_another_account()
        assert here.rig.end_of(here.reports, again).ok


def test_a_start_that_waits_where_a_signal_would_end_it_is_tried_again() -> None:
    """As a request waits for the daemon of a FUSE mount; a supervisor has its signals blocked."""
    with place("mkdir asleep") as here:
        here.run()  # its supervisors are warm
        held = os.open(here.rig.root, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            order = here.launch_of_another_account()
            end = here.rig.end_of(here.reports, order)
            assert (end.cause, end.shortage, end.started_tick) == (Cause.LOST, True, None)
            assert "its checkpoint directory does not answer" in here.note(order)
        finally:
            os.close(held)
        assert here.rig.end_of(here.reports, here.launch_of_another_account()).ok


def test_more_supervisors_than_that_are_not_left_behind(soon: None) -> None:
    with place("close", most_left=0) as here:
        order, shim = end_with_a_close(here)
        told = wait_for(lambda: here.backend.stalled_by(order.attempt_id), "it is named")
        assert f"its supervisor, process {shim}, waits in the kernel" in told
        assert isinstance(here.backend.observe(order.attempt_id), Live)
        here.let_go()
        assert here.rig.end_of(here.reports, order).ok


@pytest.mark.parametrize("server", ["the same", "another"])
def test_a_supervisor_that_hangs_is_named(soon: None, caplog: pytest.LogCaptureFixture, server: str) -> None:
    with place("mkdir", pipe_s=1000.0) as here:
        here.run()
        here.hold()
        order = here.launch_of_another_account()
        shim = here.supervisor(order)
        wait_for(lambda: stuck.waits(shim), "it waits")
        if server == "another":
            here.reopen()
            here.backend.observe(order.attempt_id)  # as it does of each that is live on record
        named = f"its supervisor, process {shim}, waits in the kernel ("
        told = wait_for(lambda: here.backend.stalled_by(order.attempt_id), "it is named")
        assert named in told and f"rota cancel --force {order.attempt_id.partition('-')[0]}" in told
        wait_for(lambda: any(order.attempt_id in each and named in each for each in caplog.messages), "and logged")
        here.let_go()
        assert here.rig.end_of(here.reports, order).ok
        assert here.backend.stalled_by(order.attempt_id) == ""


def test_where_nothing_is_found_the_supervisor_is_named(
    rig: LocalRig, backend: LocalBackend, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To say that something does not end, and nothing of what it is, helps nobody."""
    order = rig.order("last for ever")
    backend.launch(order)
    rig.start_of(reports, order)
    look_here(monkeypatch)
    monkeypatch.setattr(stuck, "AFTER_S", 0.0)
    monkeypatch.setattr(stuck, "described", lambda pids: {})
    shim = (records.read(str(rig.path(order.attempt_id, "lock"))) or {})["shim"]
    records.publish(
        str(rig.root / "backend"),
        str(rig.path(order.attempt_id, "stop").parent),
        "stop",
        records.dump({"cause": "cancelled", "signal": 9, "grace_s": 0.0}),
    )
    told = wait_for(lambda: backend.stalled_by(order.attempt_id), "what is known")
    assert f"no process of it was found just now but its supervisor, process {shim}, whose state is" in told
