"""An admin's forced end: who may ask for it, when it is done, and what a process that never dies changes afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from rota.adapters.backends import procs, stuck
from rota.adapters.backends.local import LocalBackend
from rota.adapters.backends.logfile import LogFile
from rota.adapters.backends.pipepump import PipePump
from rota.app import force
from rota.app.authz import Principal, Role
from rota.app.commands import Cancel, Drain
from rota.app.errors import Conflict, Forbidden
from rota.app.leases import Caller
from rota.app.ports import Live, StopOrder
from rota.core import events as e
from rota.core.run import Cause, RunState
from tests.app.conftest import Build
from tests.app.house import ANN, BOB, House, alive, until
from tests.backends.helpers import look_here

AGENT = Principal("robot", Role.AGENT, acts_for="ann")
# Hold the lock of a pipe: argv is a process, and a descriptor of its that is a pipe.
HOLDS = """
import os, socket, sys
pipe = os.open(f"/proc/{sys.argv[1]}/fd/{sys.argv[2]}", os.O_WRONLY)
ours, theirs = socket.socketpair()
print("ready", flush=True)
os.splice(ours.fileno(), pipe, 1)
"""
Hold = Callable[[int, int], "subprocess.Popen[bytes]"]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Begin a process outside the house that holds the lock of a pipe until it is killed."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(pid: int, fd: int) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-ISc", HOLDS, str(pid), str(fd)]
        made.append(subprocess.Popen(argv, cwd="/", stdout=subprocess.PIPE))
        assert made[-1].stdout is not None
        assert made[-1].stdout.readline() == b"ready\n"
        # It waits for its socket inside the call alone, and has the lock there; it may sleep before for other reasons.
        wchan = Path(f"/proc/{made[-1].pid}/wchan")
        until(lambda: "unix_stream" in wchan.read_text(), "it is in the call")
        return made[-1]

    yield begin
    for each in made:
        each.kill()
        each.communicate()


@contextlib.contextmanager
def undying(house: House) -> Iterator[str]:
    """A run that no stop reaches, as long as the context lasts."""
    run_id = house.running()
    attempt = house.run(run_id).attempt
    assert attempt is not None
    with patch.object(LocalBackend, "stop", lambda backend, attempt_id, order: None):
        yield run_id
    order = StopOrder("cancelled", signal=9, grace_s=0.0)
    house.loop.call(lambda desk: house.loop.backend.stop(attempt.id, order)).result()  # only the writer's thread orders
    until(lambda: attempt.id not in house.loop.backend.strays(), "it has ended, and its end was reported")
    house.settled()


# -- who, and when ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("who", [ANN, BOB, AGENT, Principal("eye", Role.VIEWER)], ids=lambda who: who.name)
def test_only_an_admin_forces_an_end(house: House, who: Principal) -> None:
    run_id = house.running()
    with pytest.raises(Forbidden, match="may not"):
        house.do(Cancel(run_id, force=True), who)
    assert house.events(e.StopRequested, run_id) == []


def test_the_refusal_of_its_owner_says_who_may(house: House) -> None:
    with pytest.raises(Forbidden, match=r"ann \(user\) may not end a run whose processes live \(force\); ask an admin"):
        house.do(Cancel(house.running(), force=True), ANN)


def test_force_kills_first_as_now_does(house: House) -> None:
    run_id = house.running(grace_s=300.0)
    run = house.do(Cancel(run_id, force=True))
    assert (run.attempt.stop.signal, run.attempt.stop.grace_s) == (9, 0.0)
    run = house.wait(run_id)
    assert (run.state, run.why) == (RunState.CANCELLED, "cancelled by root")
    assert run.past[-1].exit.signal == 9, "it ended by itself, and nothing else was recorded"
    assert not force.was_forced(run)


def test_one_that_waits_is_cancelled(house: House) -> None:
    run = house.do(Cancel(house.submit("true", held=True), force=True))
    assert (run.state, force.was_forced(run)) == (RunState.CANCELLED, False)


def test_it_is_not_ended_on_record_before_its_kill_is_long_enough_ago(build: Build) -> None:
    house = build(1, 1).open()
    with undying(house) as run_id:
        for _ in range(3):
            assert house.do(Cancel(run_id, force=True)).state is RunState.RUNNING
        assert len(house.events(e.StopRequested, run_id)) == 1, "asked again, it ends no later"
        assert house.free() == 0
        with patch.object(force, "FORCED_AFTER_S", 0.0):
            run = house.do(Cancel(run_id, force=True, left="process 5 (x) does not end"))
        assert (run.state, run.why) == (RunState.CANCELLED, "ended by force by root: process 5 (x) does not end")
        assert house.free() == 1
        (ended,) = house.events(e.AttemptEnded, run_id)
        assert (ended.exit.cause, ended.next, ended.gpu_s > 0) == (Cause.CANCELLED, RunState.CANCELLED, True)


def test_a_grace_that_is_not_over_is_cut_and_not_counted(build: Build) -> None:
    """Ten seconds after the polite signal of a run with a long grace nothing was killed."""
    house = build(1, 1).open()
    with undying(house) as run_id:
        house.do(Cancel(run_id, grace_s=300.0))
        with patch.object(force, "FORCED_AFTER_S", 0.0):
            run = house.do(Cancel(run_id, force=True))
    assert (run.state, run.attempt.stop.grace_s) == (RunState.RUNNING, 0.0)


def test_a_report_that_comes_later_changes_nothing(build: Build) -> None:
    house = build(1, 1).open()
    with undying(house) as run_id:
        house.do(Cancel(run_id, force=True))
        with patch.object(force, "FORCED_AFTER_S", 0.0):
            before = house.do(Cancel(run_id, force=True))
        after = house.running(1, BOB)
    assert house.run(run_id) == before
    assert (house.run(after).state, house.free()) == (RunState.RUNNING, 0), "they are the next run's"
    with pytest.raises(Conflict, match="already ended"):
        house.do(Cancel(run_id, force=True))


def _not_ours(house: House, run_id: str) -> str:
    said = house.rota.stalled_by(house.run(run_id))
    return said if "is not ours to end" in said else ""


def test_a_lease_whose_process_the_server_cannot_end_is_given_back(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process lives on, as one that is given back by its owner."""

    def refused(pidfd: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    house = build(1, 1).open()
    with subprocess.Popen(["sleep", "100000"]) as process:
        try:
            grant = house.parts.leases.ask(Caller(None, os.getuid()), process.pid, 1).granted.result(60)
            look_here(monkeypatch)
            monkeypatch.setattr(signal, "pidfd_send_signal", refused)
            house.do(Cancel(grant.run_id, force=True))
            with patch.object(force, "FORCED_AFTER_S", 0.0), patch.object(stuck, "AFTER_S", 0.0):
                left = until(lambda: _not_ours(house, grant.run_id), "it is named")
                assert f"process {process.pid} " in left
                run = house.do(Cancel(grant.run_id, force=True, left=left))
            assert (run.state, run.why) == (RunState.CANCELLED, f"ended by force by root: {left}")
            assert (house.free(), process.poll()) == (1, None)
        finally:
            process.kill()


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# -- a process that the kernel does not end ---------------------------------------------------------------------------
def test_a_stuck_run_is_named_given_up_and_stays_so(build: Build, hold: Hold) -> None:
    house = build(1, 2).open()
    run_id = house.in_state(house.submit("sleep 100000 | sleep 100001", 2), RunState.RUNNING)
    first = house.run(run_id).attempt
    assert first is not None and first.pid is not None
    shim, shell = house.shim_of(run_id), first.pid

    def writers() -> list[int]:
        return [each for each in procs.children(shell) if cmdline(each) == b"sleep\x00100000\x00"]

    (pid,) = until(writers, "the first of the two")
    holder = hold(pid, 1)

    house.do(Cancel(run_id, grace_s=0.0), ANN)
    until(lambda: stuck.waits_for_output(pid), "it waits in its exit")
    waiting = house.submit(("/bin/sleep", "100000"), 2, BOB)
    told = until(lambda: [one.text for one in house.rota.explain(run_id).reasons if one.code == "stalled"], "named")
    assert f"process {pid} (sleep)" in told[0] and "does not end after SIGKILL: it waits in the kernel (" in told[0]
    until(lambda: f"rota cancel --force {run_id}" in house.output(run_id), "its log names it and says what frees it")
    assert (house.run(run_id).state, house.free()) == (RunState.RUNNING, 0)

    def forced() -> bool:
        left = house.rota.stalled_by(house.run(run_id))
        return bool(house.do(Cancel(run_id, force=True, left=left)).state is RunState.CANCELLED)

    until(forced, "its kill is long enough ago")
    ended = house.run(run_id)
    assert f"ended by force by root: process {pid} (sleep)" in ended.why
    house.in_state(waiting, RunState.RUNNING)
    assert alive(pid) and alive(shim), "the next run started beside what is left of the first"

    house.reopen()
    assert house.run(run_id) == ended
    assert isinstance(house.loop.backend.observe(first.id), Live)
    assert house.run(waiting).state is RunState.RUNNING
    assert house.free() == 0
    house.do(Drain("node1"))

    holder.kill()
    until(lambda: not alive(pid) and first.id not in house.loop.backend.strays(), "what was left has ended")
    house.settled()
    assert house.run(run_id) == ended
    assert [each.exit for each in house.store.attempts(run_id)] == [ended.past[-1].exit]
    assert house.run(waiting).state is RunState.RUNNING


def test_a_process_that_outlives_the_first_of_its_run_is_named(build: Build, hold: Hold) -> None:
    house = build(1, 2).open()
    run_id = house.in_state(house.submit("sleep 100000 | sleep 100001", 2), RunState.RUNNING)
    first = house.run(run_id).attempt
    assert first is not None and first.pid is not None
    shell = first.pid

    def writers() -> list[int]:
        return [each for each in procs.children(shell) if cmdline(each) == b"sleep\x00100000\x00"]

    (pid,) = until(writers, "the first of the two")
    holder = hold(pid, 1)
    os.kill(shell, signal.SIGKILL)  # nobody stops the run: its first process ends, and then the rest is killed
    told = until(lambda: [one.text for one in house.rota.explain(run_id).reasons if one.code == "stalled"], "named")
    assert f"process {pid} (sleep)" in told[0] and "does not end after SIGKILL: it waits in the kernel (" in told[0]
    holder.kill()
    assert house.wait(run_id).state is RunState.FAILED


def test_a_supervisor_that_waits_for_the_lock_of_the_output_is_seen(hold: Hold, tmp_path: Path) -> None:
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    pump = PipePump(LogFile(log, 0))
    task = os.dup(pump.output)
    pump.start()
    assert not stuck.waits_for_output(os.getpid())
    holder = hold(os.getpid(), task)
    pump.finish()
    until(lambda: stuck.waits_for_output(os.getpid()), "the thread waits for the lock")
    assert not pump.is_over(0.01)
    holder.kill()
    assert pump.is_over(60)
    pump.close()
    os.close(task)
    os.close(log)
