"""The lease backend: what of the contract means something for a process that is not ours, and what is its own."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rota.adapters import accounts, processes
from rota.adapters.backends import evict, heard, leases, procs, stuck, tracers
from rota.adapters.backends.leases import LeaseBackend
from rota.adapters.backends.lookers import SPARE, Lookers
from rota.adapters.processes import LinuxProcesses
from rota.app.later import Later
from rota.app.ports import Absent, Ended, LaunchOrder, Live, Started, StopOrder, Unseen
from rota.core.descriptors import Shares
from rota.core.run import Cause, Exit, Holder
from tests.backends.contract import BackendContract, Kind, Reports, Rig
from tests.backends.helpers import descendants, look_here, wait_for

NOBODY = pwd.getpwnam("nobody").pw_uid
FOREVER = "while :; do sleep 1000; done"
LIVES: dict[Kind, str] = {
    "succeed": "exit 0",
    "fail with 3": "exit 3",
    "last for ever": "exec sleep 1000",
    "ignore TERM": f"trap '' TERM; echo deaf; {FOREVER}",
    "say hello": "exit 0",
}


class LeaseRig(Rig):
    def __init__(self, root: Path) -> None:
        self.root = root
        self.processes, self.later = LinuxProcesses(), Later()
        self.people: list[subprocess.Popen[bytes]] = []

    def backend(self) -> LeaseBackend:
        return LeaseBackend(self.root, self.processes, self.later)

    def argv(self, kind: Kind) -> tuple[str, ...]:
        return ("sh", "-c", LIVES[kind])

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        return wait_for(condition, what)

    def workdir(self) -> str:
        return str(self.root)

    def order(self, kind: Kind, **changes: Any) -> LaunchOrder:
        return super().order(kind, **{"holder": self.person(*self.argv(kind)), **changes})

    def person(self, *argv: str, **more: Any) -> Holder:
        """Somebody's process, in a session of its own, as it would be."""
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True, **more)
        self.people.append(process)
        seen = self.processes.look(process.pid, "test")
        return seen.holder if seen is not None else Holder(process.pid, 0, procs.boot_id())

    def says(self, holder: Holder) -> bytes:
        process = next(each for each in self.people if each.pid == holder.pid)
        assert process.stdout is not None
        return process.stdout.readline()

    def close(self) -> None:
        for process in self.people:
            if process.returncode is None:  # else it is reaped, and its number may be a stranger's
                for pid in [*descendants(process.pid), process.pid]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self.later.close()
        self.processes.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LeaseRig]:
    made = LeaseRig(tmp_path)
    yield made
    made.close()


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def backend(rig: LeaseRig, reports: Reports) -> Iterator[LeaseBackend]:
    made = rig.backend()
    made.open(reports)
    yield made
    made.close()


class TestContract(BackendContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[LeaseRig]:
        made = LeaseRig(tmp_path)
        yield made
        made.close()

    # A holder's exit code, output and time are its own: nothing of these comes back through a lease.
    test_a_command_runs_and_its_end_is_reported_once = None  # type: ignore[assignment]
    test_an_exit_code_comes_back = None  # type: ignore[assignment]
    test_a_cancel_ends_it_with_its_cause = None  # type: ignore[assignment]
    test_who_ignores_the_polite_signal_is_killed = None  # type: ignore[assignment]
    test_launching_twice_starts_once = None  # type: ignore[assignment]
    test_what_is_forgotten_is_no_stray_and_keeps_its_log = None  # type: ignore[assignment]
    test_a_log_is_read_by_cursor_from_either_end = None  # type: ignore[assignment]
    test_a_time_limit_ends_it = None  # type: ignore[assignment]
    test_who_has_a_handler_is_warned_before_the_limit = None  # type: ignore[assignment]
    test_a_warning_ends_nobody_who_never_heard_of_it = None  # type: ignore[assignment]
    test_a_program_that_saves_and_leaves_when_stopped_was_stopped = None  # type: ignore[assignment]
    test_who_had_to_be_killed_is_told_of = None  # type: ignore[assignment]
    test_who_was_to_save_and_cannot_is_told_of = None  # type: ignore[assignment]
    test_nobody_is_said_to_have_ignored_what_left_no_time = None  # type: ignore[assignment]
    test_a_second_stop_may_hasten_the_end = None  # type: ignore[assignment]
    test_purging_takes_what_is_over_forgotten_and_old = None  # type: ignore[assignment]


SAVING = """
import os, signal
heard = 0
def save(*_):
    global heard
    heard += 1
    print("saving", flush=True)
def tell(*_):
    print(heard, flush=True)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGWINCH, tell)  # a higher number: of two that wait, the lower one comes first
os.write(1, b"ready\\n")  # not by print, which may not be entered twice: the signal may come inside it
while True:
    signal.pause()
"""


def test_an_order_to_end_that_is_repeated_gives_one_signal(rig, reports):
    """A program has the first one to save by, and may end at the second. Servers repeat what is on record."""
    order = rig.order("last for ever", holder=rig.person(sys.executable, "-c", SAVING))
    assert rig.says(order.holder) == b"ready\n"
    stop = StopOrder("cancelled", signal.SIGTERM, 600.0)
    for server in range(2):
        backend = rig.backend()
        backend.open(reports)
        if not server:
            backend.launch(order)
            backend.stop(order.attempt_id, stop)
            assert rig.says(order.holder) == b"saving\n"
            known = backend._known[order.attempt_id]
            wait_for(partial(getattr, known, "asked"), "the signal on record")
        for _ in range(3):
            backend.stop(order.attempt_id, stop)
            assert backend._known[order.attempt_id].order is None, "nothing is to be carried out"
        os.kill(order.holder.pid, signal.SIGWINCH)
        assert rig.says(order.holder) == b"1\n"
        backend.close()


def test_a_server_that_starts_during_the_grace_grants_no_more(rig, reports):
    order = rig.order("ignore TERM")
    assert rig.says(order.holder) == b"deaf\n"
    first, second = rig.backend(), rig.backend()
    first.open(reports)
    first.launch(order)
    first.stop(order.attempt_id, StopOrder("cancelled", signal.SIGTERM, 600.0))
    kill_by = first._known[order.attempt_id].kill_by
    first.close()
    second.open(reports)
    second.stop(order.attempt_id, StopOrder("cancelled", signal.SIGTERM, 6000.0))
    assert second._known[order.attempt_id].kill_at == kill_by
    second.stop(order.attempt_id, StopOrder("cancelled", signal.SIGTERM, 0.0))
    wait_for(lambda: any(isinstance(each, Ended) for each in reports.of(order.attempt_id)), "its end")
    second.close()


LOADING = """
import os, signal, sys
def save(*_):
    if os.getpid() == main:
        sys.stdin.readline()
        os._exit(0)
main = os.getpid()
signal.signal(signal.SIGTERM, save)
if os.fork():
    print("ready", flush=True)
else:
    signal.alarm(300)  # whatever becomes of the test
while True:
    signal.pause()
"""


def let_end(person: subprocess.Popen[bytes]) -> None:
    assert person.stdin is not None
    person.stdin.write(b"\n")
    person.stdin.close()
    person.wait()


@pytest.mark.parametrize("when", ["while no server is there", "after the next has begun"])
def test_forks_that_hear_nothing_go_with_a_holder_that_saves_across_a_restart(rig, reports, when):
    holder = rig.person(sys.executable, "-ISc", LOADING, stdin=subprocess.PIPE)
    person = rig.people[-1]
    assert rig.says(holder) == b"ready\n"
    order, stop = rig.order("last for ever", holder=holder), StopOrder("cancelled", signal.SIGTERM, 600.0)
    first, second = rig.backend(), rig.backend()
    first.open(reports)
    first.launch(order)
    first.stop(order.attempt_id, stop)
    wait_for(partial(getattr, first._known[order.attempt_id], "asked"), "the signal on record")
    first.close()
    if when == "while no server is there":
        let_end(person)
    second.open(reports)
    second.stop(order.attempt_id, stop)
    if when != "while no server is there":
        let_end(person)
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    second.close()


def test_a_lease_starts_at_once_and_ends_with_its_holder(rig, backend, reports):
    order = rig.order("last for ever")
    begun = time.monotonic()
    backend.launch(order)
    assert reports.of(order.attempt_id) == [Started(order.attempt_id, order.holder.pid)], "before launch returned"
    os.kill(order.holder.pid, signal.SIGKILL)
    end = rig.end_of(reports, order)
    assert (end.cause, end.ok) == (Cause.RELEASED, True)
    assert end.ended_tick - end.started_tick <= time.monotonic() - begun + 0.01
    assert backend.observe(order.attempt_id) == end
    assert len([each for each in reports.of(order.attempt_id) if isinstance(each, Ended)]) == 1


def test_a_holder_that_is_dead_already_never_starts(rig, backend, reports):
    order = rig.order("succeed")
    rig.people[-1].wait()
    backend.launch(order)
    (only,) = reports.of(order.attempt_id)
    assert isinstance(only, Ended) and only.exit.cause is Cause.RELEASED


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "the boot before"}])
def test_a_reused_number_is_somebody_else(rig, backend, reports, change):
    order = rig.order("last for ever")
    backend.launch(replace(order, holder=replace(order.holder, **change)))
    assert rig.end_of(reports, order).cause is Cause.RELEASED
    assert rig.people[-1].poll() is None, "who now has the number is left alone"


def test_launching_again_changes_nothing(rig, backend, reports):
    order = rig.order("last for ever")
    for _ in range(3):
        backend.launch(order)
    assert reports.of(order.attempt_id) == [Started(order.attempt_id, order.holder.pid)]
    os.kill(order.holder.pid, signal.SIGKILL)
    end = rig.end_of(reports, order)
    backend.launch(order)
    assert reports.of(order.attempt_id)[-1] == Ended(order.attempt_id, end)


def test_a_job_is_no_lease(rig, backend):
    with pytest.raises(ValueError, match="no holder"):
        backend.launch(replace(rig.order("succeed"), holder=None))


def test_a_cancel_ends_the_holder_and_says_so(rig, backend, reports):
    order = rig.order("last for ever")
    backend.launch(order)
    backend.stop(order.attempt_id, StopOrder("cancelled"))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert rig.people[-1].wait(60) == -signal.SIGTERM


def test_a_deaf_holder_is_killed_with_all_it_started(rig, backend, reports):
    line = f"(trap '' TERM; {FOREVER}) & echo $!; trap '' TERM; {FOREVER}"
    holder = rig.person("sh", "-c", line)
    order = rig.order("last for ever", holder=holder)
    child = int(rig.says(holder))
    backend.launch(order)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.3))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert procs.start_time(holder.pid) is None
    assert procs.start_time(child) is None


def test_who_is_looked_at_for_long_delays_nobody_else(rig, backend, reports, monkeypatch):
    """How many processes a holder has, and so how long it takes to look at them, is up to its owner."""
    slow, other = rig.order("last for ever"), rig.order("last for ever")
    looked_at, let_go = threading.Event(), threading.Event()
    real = evict.family

    def family(holder: Holder, *more: Any) -> evict.Family:
        if holder == slow.holder:
            looked_at.set()
            assert let_go.wait(60)
        return real(holder, *more)

    look_here(monkeypatch)
    monkeypatch.setattr(evict, "family", family)
    backend.launch(slow)
    writer = threading.Thread(target=backend.stop, args=(slow.attempt_id, StopOrder("cancelled")), daemon=True)
    writer.start()
    assert looked_at.wait(60)
    try:
        writer.join(30)
        assert not writer.is_alive(), "the one writer has other things to do"
        backend.launch(other)
        assert isinstance(backend.observe(slow.attempt_id), Live)
        assert isinstance(backend.observe(other.attempt_id), Live)
        backend.stop(other.attempt_id, StopOrder("released"))
        assert isinstance(backend.observe(other.attempt_id), Exit)
    finally:
        let_go.set()
    assert rig.end_of(reports, slow).cause is Cause.CANCELLED


def test_of_a_large_family_nobody_is_left(rig, backend, reports, monkeypatch):
    """More than are watched one by one, and more than are waited for."""
    monkeypatch.setattr(leases, "MAX_WATCHED", 5)
    monkeypatch.setattr(leases, "MAX_BROOD", 20)
    line = "trap '' TERM; for n in $(seq 40); do sleep 1000 & done; echo ready; wait"
    holder = rig.person("sh", "-c", line)
    assert rig.says(holder) == b"ready\n"
    family = rig.until(lambda: len(found := evict.family(holder).found) == 41 and found, "all are there")
    order = rig.order("last for ever", holder=holder)
    backend.launch(order)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.1))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    rig.until(lambda: not any(procs.start_time(pid) == start for pid, start in family), "all are gone")


def test_a_family_that_one_look_does_not_find_is_killed_after_the_next(rig, backend, reports, monkeypatch):
    """Three generations, so that some whose children no look has found yet are known before these are."""
    look_here(monkeypatch)
    monkeypatch.setattr(heard, "MAX_FOUND", 7)
    monkeypatch.setattr(leases, "RETRY_S", 0.01)
    branch = "trap '' TERM; for n in 1 2 3 4 5; do sleep 1000 & done; wait"
    line = "trap '' TERM; for n in 1 2 3 4; do sh -c \"$0\" & done; echo ready; wait"
    holder = rig.person("sh", "-c", line, branch)
    assert rig.says(holder) == b"ready\n"
    family = rig.until(lambda: len(found := descendants(holder.pid)) == 24 and found, "all are there")
    began = {pid: procs.start_time(pid) for pid in family}
    assert evict.family(holder).unseen, "it is more than one look finds"
    order = rig.order("last for ever", holder=holder)
    backend.launch(order)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.1))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    left = [pid for pid, start in began.items() if procs.start_time(pid) == start]
    assert left == [], "its GPUs are given to the next"


def test_one_of_a_large_family_that_ignores_the_signal_is_killed_when_its_time_is_over(
    rig, backend, reports, monkeypatch
):
    """Though the holder and all others ended at once, and though it is not on record."""
    monkeypatch.setattr(leases, "MAX_WATCHED", 5)
    monkeypatch.setattr(leases, "MAX_BROOD", 20)
    deaf = "trap '' TERM; echo $$; while :; do sleep 1000; done"
    line = 'for n in $(seq 40); do sleep 1000 & done; sh -c "$0" & wait'
    holder = rig.person("sh", "-c", line, deaf)
    pid = int(rig.says(holder))
    start = procs.start_time(pid)
    rig.until(lambda: len(evict.family(holder).found) >= 42, "all are there")
    order = rig.order("last for ever", holder=holder)
    backend.launch(order)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=3.0))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert procs.start_time(pid) != start, "its GPUs are given to the next"


def test_without_a_thread_for_it_a_cancel_waits_and_is_carried_out(rig, reports, monkeypatch, caplog):
    """The process table may be full of other people's processes just then."""
    real, full = threading.Thread.start, threading.Event()
    full.set()

    def start(thread: threading.Thread) -> None:
        if full.is_set() and thread.name == "rota-evict":
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    backend = rig.backend()
    backend.open(reports)
    order = rig.order("last for ever")
    backend.launch(order)
    for _ in range(3):
        backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=1000.0))
    assert isinstance(backend.observe(order.attempt_id), Live)
    full.clear()
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert "can't start new thread" in caplog.text
    backend.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server has holders of other accounts")
def test_a_process_escapes_no_cancel_by_its_name(rig):
    """Any process can call itself a supervisor; only one of the server's account is believed."""
    code = """
import ctypes, os
os.setuid(65534)
for _ in range(2):
    if not os.fork():
        ctypes.CDLL(None).prctl(15, b"rota-shim", 0, 0, 0)
        os.fork()
        os.write(1, b"ready\\n")
        os.read(0, 1)
        os._exit(0)
os.read(0, 1)
"""
    holder = replace(rig.person(sys.executable, "-c", code, stdin=subprocess.PIPE), uid=65534)
    assert [rig.says(holder) for _ in range(4)] == [b"ready\n"] * 4
    assert {pid for pid, _ in evict.family(holder).found} == {holder.pid, *descendants(holder.pid)}
    process = rig.people[-1]
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server has holders of other accounts")
@pytest.mark.parametrize("setuid", [False, True])
def test_a_supervisor_of_the_servers_account_is_believed_unless_the_owner_could_start_it(rig, setuid, monkeypatch):
    """As su is, which may be called by any name and has its caller's process below it."""
    shim = """
import ctypes, os
ctypes.CDLL(None).prctl(15, b"rota-shim", 0, 0, 0)
if not os.fork():
    os.setuid(65534)
    print(os.getpid(), flush=True)
os.read(0, 1)
"""
    code = """
import os, subprocess, sys
os.setresuid(65534, 65534, 0)
if not os.fork():
    os.setresuid(0, 0, 0)
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
os.setuid(65534)
os.read(0, 1)
"""
    holder = replace(rig.person(sys.executable, "-c", code, shim, stdin=subprocess.PIPE), uid=65534)
    job = int(rig.says(holder))
    rig.until(lambda: procs.uid_of(holder.pid) == 65534, "it has its own account only")
    if setuid:
        real = os.stat(sys.executable)
        facts = [real.st_mode | 0o4000, *real[1:]]
        monkeypatch.setattr(os, "stat", lambda path, **more: os.stat_result(facts))
    found = {pid for pid, _ in evict.family(holder).found}
    monkeypatch.undo()
    assert found == ({holder.pid, job} if setuid else {holder.pid})
    process = rig.people[-1]
    assert process.stdin is not None
    process.stdin.close()


def test_a_process_below_a_supervisor_is_no_part_of_the_family(rig):
    """As of a person who runs a server of their own in the shell that has the lease."""
    code = """
import ctypes, subprocess, sys
shim = "import ctypes, subprocess; ctypes.CDLL(None).prctl(15, b'rota-shim', 0, 0, 0); "
shim += "print(subprocess.Popen(['sleep', '1000']).pid, flush=True); input()"
subprocess.run([sys.executable, "-c", shim])
"""
    holder = rig.person(sys.executable, "-c", code, stdin=subprocess.PIPE)
    job = int(rig.says(holder))
    assert job in descendants(holder.pid)
    assert [pid for pid, _ in evict.family(holder).found] == [holder.pid]
    process = rig.people[-1]
    os.kill(job, signal.SIGKILL)
    process.communicate(b"\n", 60)


def test_the_gpus_stay_taken_until_the_last_of_the_family_is_gone(rig, backend, reports, tmp_path):
    """A wrapper dies of the signal at once; the training it started writes its checkpoint first."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    child = f"trap 'read x < {gate}; exit 0' TERM; echo $$; {FOREVER.replace('sleep 1000', 'sleep 0.05')}"
    holder = rig.person("sh", "-c", 'sh -c "$0" & wait', child)
    order = rig.order("last for ever", holder=holder)
    training = int(rig.says(holder))
    backend.launch(order)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=1000.0))
    rig.until(lambda: procs.start_time(holder.pid) is None, "the wrapper is gone")
    assert isinstance(backend.observe(order.attempt_id), Live)
    assert reports.exit(order.attempt_id) is None
    gate.write_text("go\n")
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert procs.start_time(training) is None


def test_a_second_cancel_may_hasten_the_end(rig, backend, reports):
    order = rig.order("ignore TERM")
    assert rig.says(order.holder) == b"deaf\n"
    backend.launch(order)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=3600.0))
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.05))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED


def test_giving_it_back_leaves_the_process_alone(rig, backend, reports):
    order = rig.order("last for ever")
    backend.launch(order)
    backend.stop(order.attempt_id, StopOrder("released"))
    end = reports.exit(order.attempt_id)
    assert end is not None and end.cause is Cause.RELEASED, "at once"
    backend.stop(order.attempt_id, StopOrder("cancelled", signal=9, grace_s=0.0))
    assert backend.observe(order.attempt_id) == end
    assert rig.people[-1].poll() is None


def test_what_keeps_the_server_alive_is_never_signalled(rig, backend, reports, caplog):
    child = rig.person("sleep", "1000")
    for pid in (os.getpid(), os.getppid(), 1):
        assert evict.family(rig.processes.look(pid, "test").holder).found == (), "nor anything it started"
    order = rig.order("last for ever", holder=rig.processes.look(os.getpid(), "test").holder)
    backend.launch(order)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.0))
        rig.until(lambda: order.attempt_id in caplog.text, "it is said")
    assert caplog.text.count(order.attempt_id) == 1, "said once"
    assert isinstance(backend.observe(order.attempt_id), Live), "held for as long as it lives"
    backend.stop(order.attempt_id, StopOrder("released"))
    assert isinstance(backend.observe(order.attempt_id), Exit), "but it can be given back"
    assert procs.start_time(child.pid) == child.start_ticks


def test_a_process_of_somebody_we_may_not_signal_keeps_its_lease(rig, backend, reports, monkeypatch):
    """As a server sees it that is not root's."""

    def refused(pidfd: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    order = rig.order("last for ever")
    backend.launch(order)
    monkeypatch.setattr(signal, "pidfd_send_signal", refused)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.0))
    assert backend.observe(order.attempt_id) == Live(order.holder.pid)
    monkeypatch.undo()
    os.kill(order.holder.pid, signal.SIGKILL)
    assert rig.end_of(reports, order).cause is Cause.CANCELLED


def test_what_is_not_its_owners_to_end_is_never_signalled(rig, backend, reports, caplog):
    order = rig.order("last for ever")
    holder = replace(order.holder, uid=-1)
    assert evict.family(holder).found == ()
    backend.launch(replace(order, holder=holder))
    backend.stop(order.attempt_id, StopOrder("cancelled", signal=9, grace_s=0.0))
    rig.until(lambda: "is not ours to end" in caplog.text, "it is said")
    assert isinstance(backend.observe(order.attempt_id), Live)
    assert rig.people[-1].poll() is None
    backend.stop(order.attempt_id, StopOrder("released"))
    assert isinstance(backend.observe(order.attempt_id), Exit)


# A process of the account nobody that becomes another one, as by the exec of a set-uid file. Arguments: when (or that
# its child does so), the user id it takes, and this text.
BECOMES = """
import os, signal, subprocess, sys, time
when, uid, code = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def become(*_):
    os.setresuid(uid, uid, uid)
    os.write(1, b"%d\\n" % os.getpid())
os.setresuid(65534, 0, 0)
if when.startswith("child-"):
    subprocess.Popen([sys.executable, "-ISc", code, when.removeprefix("child-"), *sys.argv[2:]])
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, become if when == signal.Signals(number).name else signal.SIG_IGN)
if when == "at-once":
    become()
elif not when.startswith("child-"):
    os.write(1, b"ready\\n")
while True:
    time.sleep(1000)
"""


@pytest.fixture
def becomes(rig: LeaseRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Holder]:
    """Begin BECOMES. The account nobody has the subordinate ids from 900,000 on."""
    if os.geteuid() != 0:
        pytest.skip("needs root to start processes of another account")
    (tmp_path / "subuid").write_text("nobody:900000:65536\n")
    monkeypatch.setattr(accounts, "SUBUID", str(tmp_path / "subuid"))
    rig.processes._accounts.look()

    def begin(when: str, uid: int) -> Holder:
        holder = rig.person(sys.executable, "-ISc", BECOMES, when, str(uid), BECOMES)
        said = rig.says(holder)
        assert said == b"ready\n" or when.endswith("at-once"), said
        seen = rig.processes.look(holder.pid, "test")
        assert seen is not None and seen.holder.uid == NOBODY
        return seen.holder

    return begin


@pytest.mark.parametrize("uid", [900_000, 54321], ids=["subordinate", "another-accounts"])
def test_a_holder_that_takes_another_id_ends_with_its_cancel(rig, backend, reports, becomes, uid):
    """Else any lease would escape its cancel by a set-uid file."""
    holder = becomes("SIGUSR1", uid)
    order = rig.order("last for ever", holder=holder)
    backend.launch(order)
    os.kill(holder.pid, signal.SIGUSR1)
    assert rig.says(holder) == b"%d\n" % holder.pid
    assert procs.uid_of(holder.pid) == uid
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.1))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert procs.start_time(holder.pid) is None


def test_a_descendant_that_takes_another_id_when_it_is_asked_to_end_is_killed(rig, backend, reports, becomes):
    holder = becomes("child-SIGTERM", 54321)
    (child,) = descendants(holder.pid)
    order = rig.order("last for ever", holder=holder)
    backend.launch(order)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=1000.0))
    assert rig.says(holder) == b"%d\n" % child
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.0))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert procs.start_time(child) is None


def test_a_descendant_with_a_subordinate_id_ends_with_its_lease(rig, backend, reports, becomes):
    """Also one that is in no user namespace of its account, after the exec of a set-uid file."""
    holder = becomes("child-at-once", 900_000)
    (child,) = descendants(holder.pid)
    order = rig.order("last for ever", holder=holder)
    backend.launch(order)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.1))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert procs.start_time(child) is None


def test_leases_of_subordinate_ids_wait_in_the_line_of_their_account(rig, backend, reports, becomes, monkeypatch):
    """Else 200 of an account's ids would have 200 lines, and every other account waited for each. A record of an older
    version names the subordinate id itself."""
    lines: list[int] = []
    real = backend._turns.put

    def put(account: int, *more: Any, **how: Any) -> None:
        lines.append(account)
        real(account, *more, **how)

    monkeypatch.setattr(backend._turns, "put", put)
    for uid in (NOBODY, 900_000, 900_001):
        holder = replace(becomes("never", 900_000), uid=uid)
        order = rig.order("last for ever", holder=holder)
        backend.launch(order)
        backend.stop(order.attempt_id, StopOrder("cancelled", signal=9, grace_s=0.0))
        assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert set(lines) == {NOBODY}


def test_what_outlives_its_kill_is_named_with_the_way_out(  # noqa: PLR0917 - fixtures
    rig, backend, reports, becomes, monkeypatch, caplog
):
    """As in a server that is not root's, which may not signal what has become another account's."""
    look_here(monkeypatch)
    monkeypatch.setattr(stuck, "AFTER_S", 0.0)
    holder = becomes("SIGUSR1", 900_000)
    order = rig.order("last for ever", holder=holder)
    backend.launch(order)
    assert backend.stalled_by(order.attempt_id) == "", "nobody has asked it to end"
    os.kill(holder.pid, signal.SIGUSR1)
    assert rig.says(holder) == b"%d\n" % holder.pid

    def refused(pidfd: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(signal, "pidfd_send_signal", refused)
        backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.0))
        run_id = order.attempt_id.partition("-")[0]
        rig.until(lambda: f"rota cancel --force {run_id}" in caplog.text, "the log names the way out")
        told = "of user id 900000 (account nobody) is not ours to end"
        rig.until(lambda: told in (said := backend.stalled_by(order.attempt_id)) and str(holder.pid) in said, "named")
    os.kill(holder.pid, signal.SIGKILL)
    assert rig.end_of(reports, order).cause is Cause.CANCELLED


def test_no_signal_waits_for_descriptors_to_hear_of_ends(rig, backend, reports, monkeypatch):
    line = "trap '' TERM; sleep 1000 & echo ready; wait; wait"
    holder = rig.person("sh", "-c", line)
    assert rig.says(holder) == b"ready\n"
    order = rig.order("last for ever", holder=holder)
    backend.launch(order)

    def full(*given: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(rig.processes, "keep", full)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.2))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED


def test_orders_that_come_to_nothing_leave_nothing_behind(rig, backend, reports, monkeypatch):
    """They are repeated every few seconds, for days perhaps, for a process that waits in the kernel."""
    look_here(monkeypatch)
    monkeypatch.setattr(leases, "RETRY_S", 0.01)
    monkeypatch.setattr(leases, "LOOK_S", 1000.0)
    monkeypatch.setattr(tracers, "AFTER_S", 0.0)
    order = rig.order("last for ever")
    backend.launch(order)
    killed: list[int] = []
    freed: list[str] = []
    kept: list[int] = []
    real = backend._free

    def kill_in_vain(targets: Any, number: int) -> bool:
        killed.append(number)
        return True

    def _free(name: str) -> None:
        freed.append(name)
        real(name)

    with monkeypatch.context() as patched:
        patched.setattr(evict, "signal_all", kill_in_vain)
        patched.setattr(backend, "_free", _free)
        lease = backend._known[order.attempt_id]
        for count in range(1, 21):
            backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.0))
            rig.until(lambda n=count: killed.count(signal.SIGKILL) >= n, "it is tried again")
            kept.append(len(lease.undo) + len(lease.due))
        rig.until(lambda: freed, "what traces it is looked for")
        assert set(kept[3:]) == {kept[3]}
        assert len(freed) == 1, "once in a while, however many orders there were"
    os.kill(order.holder.pid, signal.SIGKILL)
    assert rig.end_of(reports, order).cause is Cause.CANCELLED


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to start a process of another account")
def test_of_a_family_only_those_of_the_owners_account_are_ended(rig, backend, reports):
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '1000'], user=54321).pid, flush=True); input()"
    holder = rig.person(sys.executable, "-c", code, stdin=subprocess.PIPE)
    stranger = int(rig.says(holder))
    order = rig.order("last for ever", holder=holder)
    backend.launch(order)
    assert [pid for pid, _ in evict.family(holder).found] == [holder.pid]
    backend.stop(order.attempt_id, StopOrder("cancelled", signal=9, grace_s=0.0))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert procs.start_time(stranger) is not None
    os.kill(stranger, signal.SIGKILL)
    rig.people[-2].stdin.close()


ANOTHER_ID = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
def say(text):
    os.write(1, text + b"\\n")
    os.read(0, 1)
os.setgroups([])
os.setgid(65534)
os.setuid(int(sys.argv[2]))
libc.prctl(4, 1)  # its files in /proc are its own again
say(b"begun")
if sys.argv[1] == "child" and os.fork():
    time.sleep(1000)
if libc.unshare(0x10000000):  # as a rootless container does: a user namespace, and then another of its ids
    say(b"cannot 0")
say(b"map %d" % os.getpid())
os.setuid(1)
say(b"another")
time.sleep(1000)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to start processes of another account")
@pytest.mark.parametrize("which", ["itself", "child"])
def test_what_took_a_subordinate_id_ends_with_its_lease(rig, backend, reports, which):
    """A holder, or a child of it, that became another id in a user namespace is still its account's."""
    nobody = pwd.getpwnam("nobody").pw_uid
    argv = [sys.executable, "-ISc", ANOTHER_ID, which, str(nobody)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd="/")
    assert process.stdin is not None and process.stdout is not None
    other = process.pid
    try:
        assert process.stdout.readline() == b"begun\n"
        order = rig.order("last for ever", holder=rig.processes.look(process.pid, "test").holder)
        assert order.holder.uid == nobody
        backend.launch(order)
        process.stdin.write(b".")
        word, number = process.stdout.readline().split()
        other = int(number) or other
        if word != b"map":
            pytest.skip("this machine lets no account make a user namespace")
        with open(f"/proc/{other}/uid_map", "w") as file:  # as newuidmap does
            file.write(f"0 {nobody} 1\n1 900000 1\n")
        process.stdin.write(b".")
        assert process.stdout.readline() == b"another\n"
        assert procs.uid_of(other) == 900_000
        backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.1))
        assert rig.end_of(reports, order).cause is Cause.CANCELLED
        assert procs.start_time(other) is None, "nothing of it uses the GPUs any more"
    finally:
        for pid in {process.pid, other}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def test_a_holder_that_is_traced_does_not_outlive_its_cancel(rig, backend, reports):
    """The tracer has it stop on its way out (PTRACE_SEIZE with PTRACE_O_TRACEEXIT), and never lets it go."""
    order = rig.order("last for ever")
    backend.launch(order)
    code = """
import ctypes, sys, time
print(ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), None, ctypes.c_void_p(0x40)), flush=True)
time.sleep(1000)
"""
    tracer = rig.person(sys.executable, "-c", code, str(order.holder.pid))
    if rig.says(tracer).strip() != b"0":
        pytest.skip("this machine does not let a process be traced by another")
    try:
        backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.0))
        assert rig.end_of(reports, order).cause is Cause.CANCELLED
        wait_for(lambda: procs.start_time(tracer.pid) is None, "the end of the tracer")
    finally:  # else nothing ends the other
        rig.people[-1].kill()


def test_what_a_holder_forked_does_not_run_its_handler(rig, backend, reports, tmp_path):
    """A data loader has inherited it: it would save as well, over what its parent saves. It goes when that has gone."""
    code = """
import os, signal, sys, time
main, step = os.getpid(), 0
def save(number, frame):
    with open(sys.argv[1], "a") as file:
        file.write(f"{'main' if os.getpid() == main else 'loader'} {step}\\n")
    time.sleep(0.5)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
for _ in range(3):
    if os.fork() == 0:
        while True:
            time.sleep(0.01)
step = 2307
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""
    holder = rig.person(sys.executable, "-ISc", code, str(tmp_path / "saves"))
    assert rig.says(holder) == b"ready\n"
    order = rig.order("last for ever", holder=holder)
    backend.launch(order)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=600.0))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert (tmp_path / "saves").read_text() == "main 2307\n"


def test_one_that_cannot_be_watched_keeps_no_other_from_being_given(rig, backend, reports, monkeypatch):
    monkeypatch.setattr(processes, "MAX_IDLE", 0)
    first, second = rig.order("last for ever"), rig.order("last for ever")
    look: Callable[[int], int | None] = procs.start_time

    def no_descriptor_for_the_first(pid: int) -> int | None:
        if pid == first.holder.pid:
            raise OSError(errno.EMFILE, "Too many open files")
        return look(pid)

    look_here(monkeypatch)
    rig.until(lambda: not rig.processes._watches, "neither is open any more")
    monkeypatch.setattr(procs, "start_time", no_descriptor_for_the_first)
    with pytest.raises(OSError, match="Too many open files"):
        backend.launch(first, second)
    assert reports.started(second.attempt_id) is not None
    monkeypatch.undo()
    assert backend.observe(first.attempt_id) == Live(first.holder.pid)
    os.kill(first.holder.pid, signal.SIGKILL)
    assert rig.end_of(reports, first).cause is Cause.RELEASED, "it is watched by now"


def watch_at_most(monkeypatch: pytest.MonkeyPatch, holders: int, families: int) -> None:
    """One account may have two thirds of these."""
    monkeypatch.setattr(processes, "shares", lambda limit: Shares(limit, limit // 2, 10, limit, holders, families, 64))


def watched(rig: LeaseRig) -> int:
    return sum(any(watch.wishes.values()) for watch in rig.processes._watches.values())


@pytest.mark.parametrize("how", ["ends", "is cancelled"])
def test_a_holder_for_which_there_is_no_descriptor_is_looked_at(rig, backend, reports, monkeypatch, how):
    watch_at_most(monkeypatch, 0, 0)
    order = rig.order("last for ever")
    backend.launch(order)
    assert reports.started(order.attempt_id) is not None
    assert watched(rig) == 0
    if how == "ends":
        os.kill(order.holder.pid, signal.SIGKILL)
    else:
        backend.stop(order.attempt_id, StopOrder("cancelled"))
    assert rig.end_of(reports, order).cause is (Cause.RELEASED if how == "ends" else Cause.CANCELLED)


@pytest.mark.parametrize("most", [64, 3, 0])
def test_the_family_of_many_cancelled_leases_takes_few_descriptors(rig, reports, monkeypatch, most):
    """How many leases there are, and for how long their family is awaited, is up to its owner. The next server watches
    no more of it, and ends it as well."""
    watch_at_most(monkeypatch, 90, 90 if most else 0)
    monkeypatch.setattr(processes, "MAX_FAMILY", most)
    line = "trap '' TERM; for n in 1 2 3 4 5; do sleep 1000 & done; echo ready; wait"
    holder = rig.person("sh", "-c", line)
    assert rig.says(holder) == b"ready\n"
    rig.until(lambda: len(evict.family(holder).found) == 6, "all are there")
    orders = [rig.order("last for ever", holder=holder) for _ in range(20)]
    first = rig.backend()
    first.open(reports)
    first.launch(*orders)
    assert watched(rig) == 1
    for order in orders:
        first.stop(order.attempt_id, StopOrder("cancelled", grace_s=1000.0))
    rig.until(lambda: all(len(lease.brood) == 5 for lease in first._known.values()), "all have been looked at")
    assert watched(rig) == 1 + min(5, most)
    first.close()
    assert watched(rig) == 0

    later, second = Reports(), rig.backend()
    second.open(later)
    try:
        for order in orders:
            assert second.observe(order.attempt_id) == Live(holder.pid)
        assert watched(rig) == 1, "the others are looked at now and then"
        second.stop(orders[0].attempt_id, StopOrder("cancelled", grace_s=0.0))
        for order in orders:
            assert rig.end_of(later, order).cause is Cause.CANCELLED
    finally:
        second.close()


def test_the_next_server_takes_over_what_lives_and_ends_what_died_meanwhile(rig, reports):
    first = rig.backend()
    first.open(reports)
    living, dead, cancelled = (rig.order("last for ever") for _ in range(3))
    first.launch(living, dead, cancelled)
    first.stop(cancelled.attempt_id, StopOrder("cancelled", signal=signal.SIGCONT, grace_s=1000.0))
    first.close()
    for order in (dead, cancelled):
        os.kill(order.holder.pid, signal.SIGKILL)
        rig.until(lambda pid=order.holder.pid: procs.start_time(pid) is None, "it is dead")
    assert reports.exit(dead.attempt_id) is None, "nobody looked"
    later = Reports()
    second = rig.backend()
    second.open(later)
    try:
        assert second.observe(living.attempt_id) == Live(living.holder.pid)
        assert second.observe(dead.attempt_id).cause is Cause.RELEASED
        assert second.observe(cancelled.attempt_id).cause is Cause.CANCELLED, "what was asked for is remembered"
        assert set(second.strays()) == {living.attempt_id, dead.attempt_id, cancelled.attempt_id}
        os.kill(living.holder.pid, signal.SIGKILL)
        assert rig.end_of(later, living).cause is Cause.RELEASED, "an adopted one is watched"
    finally:
        second.close()


def test_a_lease_of_the_boot_before_is_over(rig, backend, tmp_path):
    order = rig.order("last for ever")
    record = {"pid": order.holder.pid, "start": order.holder.start_ticks, "boot_id": "x", "tick": 1e6}
    path = tmp_path / "leases" / order.attempt_id
    path.write_text(json.dumps({**record, "cause": "released", "brood": []}))
    backend.stop(order.attempt_id, StopOrder("cancelled", signal=9, grace_s=0.0))
    end = backend.observe(order.attempt_id)
    assert (end.cause, end.ended_tick, end.message) == (Cause.RELEASED, None, "the machine restarted")
    assert rig.people[-1].poll() is None


def test_forgetting_and_purging(rig, backend, reports):
    kept, gone, living = rig.order("last for ever"), rig.order("last for ever"), rig.order("last for ever")
    backend.launch(kept, gone, living)
    for order in (kept, gone):
        os.kill(order.holder.pid, signal.SIGKILL)
        rig.end_of(reports, order)
    backend.forget(gone.attempt_id)
    backend.forget(gone.attempt_id)
    assert set(backend.strays()) == {kept.attempt_id, living.attempt_id}
    assert isinstance(backend.observe(gone.attempt_id), Exit), "still known"
    assert backend.purge(0.0) == 0
    assert backend.purge(1e12) == 1
    assert backend.observe(gone.attempt_id) == Absent()
    assert isinstance(backend.observe(kept.attempt_id), Exit)
    assert isinstance(backend.observe(living.attempt_id), Live)


def test_cancel_release_and_death_at_once_make_one_end(rig, backend, reports):
    for _ in range(20):
        order = rig.order("last for ever")
        backend.launch(order)
        acts: list[Callable[[], None]] = [
            lambda o=order: backend.stop(o.attempt_id, StopOrder("cancelled", grace_s=0.0)),  # type: ignore[misc]
            lambda o=order: backend.stop(o.attempt_id, StopOrder("released")),  # type: ignore[misc]
            lambda o=order: os.kill(o.holder.pid, signal.SIGKILL),  # type: ignore[misc]
            lambda o=order: backend.launch(o),  # type: ignore[misc]
        ]
        threads = [threading.Thread(target=act) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        end = rig.end_of(reports, order)
        assert backend.observe(order.attempt_id) == end
        ends = {each.exit for each in reports.of(order.attempt_id) if isinstance(each, Ended)}
        assert ends == {end}, "however often it is told, it is the same end"


def test_hundreds_of_leases_cost_no_descriptor_once_they_are_over(rig, backend, reports):
    before = len(os.listdir("/proc/self/fd"))
    holder = rig.person(sys.executable, "-c", "import time; time.sleep(1000)")
    orders = [rig.order("succeed", holder=holder) for _ in range(300)]
    backend.launch(*orders)
    os.kill(holder.pid, signal.SIGKILL)
    for order in orders:
        rig.end_of(reports, order)
    pipes = len(rig.people)
    rig.until(lambda: len(os.listdir("/proc/self/fd")) <= before + pipes + SPARE, "every watch is closed")


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Once it is called no look ends, as where an account has left too many."""

    def begin() -> None:
        def unseen(*given: Any, **more: Any) -> Any:
            raise Unseen("a look has not ended in time")

        monkeypatch.setattr(Lookers, "call", unseen)

    return begin


def test_a_lease_ends_with_its_process_also_where_no_look_ends(rig, backend, reports, no_looks):
    order = rig.order("last for ever")
    backend.launch(order)
    no_looks()
    os.kill(order.holder.pid, signal.SIGKILL)
    assert rig.end_of(reports, order).cause is Cause.RELEASED


def test_the_lock_of_all_leases_waits_for_no_look(rig, backend, reports, monkeypatch):
    """Of a lease that is known the watch tells, or the last count."""
    orders = [rig.order("last for ever") for _ in range(2)]
    backend.launch(*orders)
    watch_at_most(monkeypatch, 0, 0)
    hanging, let_go = threading.Event(), threading.Event()

    def hang(self: Lookers, *given: Any, **more: Any) -> Any:
        assert not backend._lock._is_owned(), "others wait for it"
        hanging.set()
        let_go.wait(60)
        raise Unseen("a look has not ended in time")

    monkeypatch.setattr(Lookers, "call", hang)
    backend.stop(orders[0].attempt_id, StopOrder("cancelled", grace_s=1000.0))
    assert hanging.wait(60)
    try:
        for order in orders:
            assert backend.observe(order.attempt_id) == Live(order.holder.pid)
        backend.stop(orders[1].attempt_id, StopOrder("released"))
        assert isinstance(backend.observe(orders[1].attempt_id), Exit)
    finally:
        let_go.set()


def test_a_program_gets_its_signal_though_the_first_signalling_did_not_begin(rig, backend, reports, monkeypatch):
    code = (
        "import os, signal, time; n = [0]\n"
        "def hear(*given): n[0] += 1; print(n[0], flush=True)\n"
        "signal.signal(signal.SIGTERM, hear); os.write(1, b'ready\\n')\n"
        "while True: time.sleep(1)\n"
    )
    holder = rig.person(sys.executable, "-c", code)
    assert rig.says(holder) == b"ready\n"
    order = rig.order("last for ever", holder=holder)
    backend.launch(order)
    real = Lookers.call
    refused: list[object] = []

    def call(self: Lookers, party: int, look: Any, *args: Any, **more: Any) -> Any:
        if look is evict.signal_all and args[1] == signal.SIGTERM and len(refused) < 2:
            refused.append(look)
            # too many looks are under way, or there is no process to be had for one
            raise Unseen("busy") if len(refused) == 1 else BlockingIOError(errno.EAGAIN, "no process")
        return real(self, party, look, *args, **more)

    monkeypatch.setattr(Lookers, "call", call)
    monkeypatch.setattr(leases, "RETRY_S", 0.01)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=60.0))
    assert rig.says(holder) == b"1\n"
    for _ in range(3):  # orders are repeated for as long as it lives
        backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=60.0))
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.5))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert rig.says(holder) == b"", "it was signalled once"


def test_a_program_gets_its_signal_once_though_the_signalling_does_not_end(rig, backend, reports, monkeypatch):
    code = (
        "import os, signal, time; n = [0]\n"
        "def hear(*given): n[0] += 1; print(n[0], flush=True)\n"
        "signal.signal(signal.SIGTERM, hear); os.write(1, b'ready\\n')\n"
        "while True: time.sleep(1)\n"
    )
    holder = rig.person(sys.executable, "-c", code)
    assert rig.says(holder) == b"ready\n"
    order = rig.order("last for ever", holder=holder)
    backend.launch(order)
    real, told = Lookers.call, threading.Event()

    def call(self: Lookers, party: int, look: Any, *args: Any, **more: Any) -> Any:
        found = real(self, party, look, *args, **more)
        if look is evict.signal_all and args[1] == signal.SIGTERM:
            told.set()
            raise Unseen("a look has not ended in time", has_begun=True)
        return found

    monkeypatch.setattr(Lookers, "call", call)
    monkeypatch.setattr(leases, "RETRY_S", 0.01)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=1.0))
    assert told.wait(60)
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert rig.says(holder) == b"1\n"
    assert rig.says(holder) == b"", "it was signalled once"
