"""A process that traces an attempt from outside does not keep it alive: neither past SIGKILL nor as a zombie."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rota.adapters.backends import procs, records, tracers
from rota.adapters.backends.local import LocalBackend
from rota.app.ports import LaunchOrder, StopOrder
from rota.core.run import Cause
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, wait_for

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two accounts")
STOP_AT_EXIT, NOTHING = 0x40, 0  # PTRACE_O_TRACEEXIT: the traced process stops on its way out, until it is let go
TRACE = """
import ctypes, sys, threading, time
def seize():
    for pid in sys.argv[3:]:
        if ctypes.CDLL(None).ptrace(0x4206, int(pid), None, ctypes.c_void_p(int(sys.argv[2]))):
            sys.exit("ptrace refused")
    print("traced", flush=True)
    time.sleep(1000)
if sys.argv[1] == "by-a-thread":
    threading.Thread(target=seize).start()
else:
    seize()
"""

TRACE_BY_ANOTHER_ID = """
import ctypes, os, sys, time
os.setgroups([])
os.setgid(int(sys.argv[3]))
os.setuid(int(sys.argv[2]))
libc = ctypes.CDLL(None)
if libc.ptrace(0x4206, int(sys.argv[1]), None, ctypes.c_void_p(0x40)) or libc.unshare(0x10000000):
    sys.exit("refused")
print("traced", flush=True)
sys.stdin.readline()
os.setuid(1)
print("another", flush=True)
time.sleep(1000)
"""

Trace = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def trace(backend: LocalBackend) -> Iterator[Trace]:
    """Begin a process that traces others and never looks after them."""
    made: list[subprocess.Popen[str]] = []

    def begin(*pids: int, options: int = STOP_AT_EXIT, way: str = "by-its-first-thread") -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", TRACE, way, str(options), *map(str, pids)]
        made.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd="/"))
        stdout = made[-1].stdout
        assert stdout is not None
        if stdout.readline() != "traced\n":
            pytest.skip("this machine does not let a process be traced by another")
        return made[-1]

    yield begin
    for each in reversed(made):
        each.kill()
    for each in made:
        each.communicate()


def program(rig: LocalRig, backend: LocalBackend, reports: Reports, **order: object) -> tuple[LaunchOrder, int]:
    made = rig.order("last for ever", **order)
    backend.launch(made)
    return made, rig.start_of(reports, made).pid


@pytest.mark.parametrize(
    "how",
    [
        {"options": STOP_AT_EXIT},
        {"options": NOTHING},
        {"options": STOP_AT_EXIT, "way": "by-a-thread"},
    ],
    ids=["stops-at-its-exit", "stays-a-zombie", "by-a-thread"],
)
def test_a_tracer_outside_does_not_outlive_a_cancel(
    rig: LocalRig, backend: LocalBackend, reports: Reports, trace: Trace, how: dict[str, Any]
) -> None:
    order, pid = program(rig, backend, reports)
    tracer = trace(pid, **how)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.1))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert tracer.wait(60) == -signal.SIGKILL
    said = backend.read_log(order.attempt_id, 0, 1000).content.decode()
    assert f"process {tracer.pid}" in said and "was killed" in said, "whoever traced it finds out why it is gone"


def test_a_time_limit_ends_what_is_traced_by_one_that_is_traced(
    rig: LocalRig, backend: LocalBackend, reports: Reports, trace: Trace
) -> None:
    order, pid = program(rig, backend, reports, time_limit_s=2.0, grace_s=0.1)
    first = trace(pid)
    second = trace(first.pid)
    assert rig.end_of(reports, order).cause is Cause.TIME_LIMIT
    assert first.wait(60) == second.wait(60) == -signal.SIGKILL


def test_of_a_program_one_thread_may_be_traced(
    rig: LocalRig, backend: LocalBackend, reports: Reports, trace: Trace
) -> None:
    code = "import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start(); time.sleep(1000)"
    order, pid = program(rig, backend, reports, argv=(sys.executable, "-I", "-c", code))
    threads = wait_for(lambda: len(found := os.listdir(f"/proc/{pid}/task")) > 1 and found, "its threads")
    trace(max(map(int, threads)))
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.1))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED


def test_what_a_dead_supervisor_left_behind_is_freed_too(
    rig: LocalRig, backend: LocalBackend, reports: Reports, trace: Trace
) -> None:
    order, pid = program(rig, backend, reports)
    tracer = trace(pid)
    record = records.read(str(rig.path(order.attempt_id, "pid")))
    assert record is not None
    os.kill(record["pid"], signal.SIGKILL)
    assert rig.end_of(reports, order).cause is Cause.LOST
    assert procs.start_time(pid) is None
    assert tracer.wait(60) == -signal.SIGKILL


def test_launches_do_not_wait_for_what_dead_supervisors_left_behind(
    rig: LocalRig, backend: LocalBackend, reports: Reports, trace: Trace
) -> None:
    """Each of these is looked at for seconds before it is given up: one after the other that is most of a minute."""
    left = [program(rig, backend, reports) for _ in range(10)]
    trace(*(pid for _, pid in left))
    shims = [records.read(str(rig.path(order.attempt_id, "pid"))) or {} for order, _ in left]
    for shim in shims:
        os.kill(shim["pid"], signal.SIGKILL)
    wait_for(lambda: not any(map(procs.start_time, (shim["pid"] for shim in shims))), "the supervisors to be dead")
    after = rig.order("succeed")
    backend.launch(after)
    wait_for(lambda: reports.exit(after.attempt_id) is not None, "the end of a run beside them", deadline_s=15.0)
    for order, _ in left:
        assert rig.end_of(reports, order).cause is Cause.LOST
    assert [pid for _, pid in left if procs.start_time(pid) is not None] == []


@as_root
def test_a_tracer_that_took_another_id_in_a_namespace_of_its_own_is_the_accounts(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    """An account with subordinate ids, as rootless containers use them, can have processes of these ids."""
    order, pid = program(rig, backend, reports, account="nobody", workdir="/")
    nobody = pwd.getpwnam("nobody")
    tracer = subprocess.Popen(
        [sys.executable, "-I", "-c", TRACE_BY_ANOTHER_ID, str(pid), str(nobody.pw_uid), str(nobody.pw_gid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    try:
        assert tracer.stdin is not None and tracer.stdout is not None
        if tracer.stdout.readline() != "traced\n":
            pytest.skip("this machine lets no account trace its processes, or make a user namespace")
        with open(f"/proc/{tracer.pid}/uid_map", "w") as file:  # as newuidmap does
            file.write(f"0 {nobody.pw_uid} 1\n1 900000 1\n")
        tracer.stdin.write("go\n")
        tracer.stdin.flush()
        assert tracer.stdout.readline() == "another\n"
        assert procs.uid_of(tracer.pid) == 900_000
        backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.1))
        assert rig.end_of(reports, order).cause is Cause.CANCELLED
        assert tracer.wait(60) == -signal.SIGKILL
    finally:
        tracer.kill()
        tracer.communicate()


TRACE_AND_BECOME = """
import ctypes, os, sys, time
if ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), None, ctypes.c_void_p(0x40)):
    sys.exit("refused")
os.setresuid(900000, 900000, 900000)
print("traced", flush=True)
time.sleep(1000)
"""


@as_root
@pytest.mark.parametrize("is_lost", [False, True], ids=["cancelled", "its-supervisor-is-dead"])
def test_a_tracer_that_took_a_subordinate_id_by_a_set_uid_file_is_the_accounts(
    rig: LocalRig, reports: Reports, is_lost: bool
) -> None:
    """It is in no user namespace of the account."""
    nobody = pwd.getpwnam("nobody").pw_uid
    rig.settings["subuids"] = lambda account: [(900_000, 965_536)] if account in {"nobody", nobody} else ()
    backend = rig.backend()
    backend.open(reports)
    tracer = None
    try:
        order, pid = program(rig, backend, reports, account="nobody", workdir="/")
        argv = [sys.executable, "-I", "-c", TRACE_AND_BECOME, str(pid)]
        tracer = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd="/")
        assert tracer.stdout is not None
        if tracer.stdout.readline() != "traced\n":
            pytest.skip("this machine does not let a process be traced by another")
        if is_lost:
            record = records.read(str(rig.path(order.attempt_id, "pid")))
            assert record is not None
            os.kill(record["pid"], signal.SIGKILL)
        else:
            backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.1))
        assert rig.end_of(reports, order).cause is (Cause.LOST if is_lost else Cause.CANCELLED)
        assert tracer.wait(60) == -signal.SIGKILL
    finally:
        if tracer is not None:
            tracer.kill()
            tracer.communicate()
        backend.close()


@as_root
def test_a_tracer_of_another_account_is_named_and_left_alone(
    rig: LocalRig, backend: LocalBackend, reports: Reports, trace: Trace
) -> None:
    """Such as an admin's debugger: an account can end its own processes only."""
    order, pid = program(rig, backend, reports, account="nobody", workdir="/")
    tracer = trace(pid)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.1))
    note = rig.path(order.attempt_id, "shim.log")
    wait_for(lambda: note.exists() and f"process {tracer.pid} " in note.read_text(), "the tracer's name")
    assert tracer.poll() is None
    assert note.read_text().count(f"process {tracer.pid} ") == 1, "said once"
    tracer.kill()
    assert rig.end_of(reports, order).cause is Cause.CANCELLED


def test_the_name_of_a_tracer_makes_no_lines_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said in the server's log and in the run's, and a process may choose any bytes for it."""
    monkeypatch.setattr(tracers, "tracers_of", lambda pids: [os.getpid()])
    monkeypatch.setattr(procs, "name_and_parent", lambda pid: (b"\nFAKE\x1b[2J\xff\r", 1))
    (said,) = tracers.end([], os.getuid())
    assert "(?FAKE?[2J\N{REPLACEMENT CHARACTER}?)" in said and said.isprintable()


def test_neither_we_nor_what_we_live_by_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process can make its parent its tracer without asking it (PTRACE_TRACEME)."""
    with subprocess.Popen(
        [sys.executable, "-c", "import ctypes; ctypes.CDLL(None).ptrace(0, 0, 0, 0); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        sent: list[int] = []
        monkeypatch.setattr(procs, "send", lambda pid, signum, check: sent.append(pid))
        assert tracers.tracers_of([child.pid]) == [os.getpid()]
        (said,) = tracers.end([child.pid], os.getuid())
        assert f"process {os.getpid()} " in said and sent == []
        child.kill()


@pytest.mark.parametrize("code", [0, 7])
def test_a_program_that_makes_its_supervisor_its_tracer_runs_to_its_own_end(
    rig: LocalRig, backend: LocalBackend, reports: Reports, code: int
) -> None:
    """It stops at its next exec and at every signal, and the supervisor is told so by the same call as of its end."""
    script = (
        "import ctypes, os, signal\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('heard', flush=True))\n"
        "ctypes.CDLL(None).ptrace(0, 0, 0, 0)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "ctypes.CDLL(None).ptrace(0, 0, 0, 0)\n"
        f"os.execv('/bin/sh', ['sh', '-c', 'echo executed; exit {code}'])\n"
    )
    order = rig.order("succeed", argv=(sys.executable, "-I", "-c", script))
    backend.launch(order)
    end = rig.end_of(reports, order)
    assert (end.cause, end.code) == (Cause.EXITED, code)
    assert backend.read_log(order.attempt_id, 0, 100).content == b"heard\nexecuted\n"
