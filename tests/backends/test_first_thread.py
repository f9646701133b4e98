"""A process whose first thread has ended looks like a zombie, but its other threads run on, with its GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.adapters.backends import defunct, inside, procs, records
from rota.adapters.backends.leases import LeaseBackend
from rota.adapters.backends.local import LocalBackend
from rota.adapters.processes import LinuxProcesses
from rota.app.later import Later
from rota.app.ports import LaunchOrder, Live, StopOrder
from rota.core.run import Cause, Exit
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, wait_for

# It prints its pid once its first thread is a zombie. The system call `exit` ends one thread only.
WITHOUT_FIRST_THREAD = """
import ctypes, os, threading, time
def state():
    with open(f"/proc/self/task/{os.getpid()}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
def work():
    while state() != "Z":
        time.sleep(0.01)
    os.write(1, b"%d\\n" % os.getpid())
    while True:
        time.sleep(1000)
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""
PROGRAM = (sys.executable, "-ISc", WITHOUT_FIRST_THREAD)


@pytest.fixture
def rig(tmp_path: Path) -> LocalRig:
    return LocalRig(tmp_path, cgroups=False)  # where there is no cgroup, the tree and the mark are all there is


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    env = {procs.MARKER: "a7c3b6d11f02-1"}
    with subprocess.Popen(PROGRAM, stdout=subprocess.PIPE, env=env, cwd="/") as made:
        assert made.stdout is not None
        assert int(made.stdout.readline()) == made.pid
        yield made
        made.kill()


def pid_of(backend: LocalBackend, order: LaunchOrder) -> int:
    said = wait_for(lambda: backend.read_log(order.attempt_id, 0, 100).content, "the end of its first thread")
    return int(said)


def test_it_is_seen_alive_and_of_its_attempt(process: subprocess.Popen[bytes]) -> None:
    assert procs.start_time(process.pid) is not None
    assert procs.has_marker(process.pid, "a7c3b6d11f02-1", os.getuid())
    assert not procs.has_marker(process.pid, "a7c3b6d11f02-2", os.getuid())
    assert inside.attempt_of(process.pid) == "a7c3b6d11f02-1"


@pytest.mark.parametrize("way", ["the command itself", "below a command that ends"])
def test_it_does_not_outlive_its_run(rig: LocalRig, backend: LocalBackend, reports: Reports, way: str) -> None:
    below = ("sh", "-c", f'setsid "{sys.executable}" -ISc "$0" & read x < gate', WITHOUT_FIRST_THREAD)
    gate = rig.root / "gate"
    os.mkfifo(gate)
    order = rig.order("succeed", argv=PROGRAM if way == "the command itself" else below, grace_s=0.0)
    backend.launch(order)
    pid = pid_of(backend, order)
    assert isinstance(backend.observe(order.attempt_id), Live)
    if way == "the command itself":
        backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGTERM, 600.0))
    else:
        gate.write_text("go\n")
    end = rig.end_of(reports, order)
    assert end.cause is (Cause.CANCELLED if way == "the command itself" else Cause.EXITED)
    assert procs.start_time(pid) is None


def test_it_is_found_by_its_mark_when_its_supervisor_is_dead(rig: LocalRig, reports: Reports) -> None:
    first = rig.backend()
    first.open(reports)
    order = rig.order("succeed", argv=PROGRAM)
    first.launch(order)
    rig.start_of(reports, order)
    pid = pid_of(first, order)
    record = records.read(str(rig.path(order.attempt_id, "pid")))
    assert record is not None
    first.close()
    os.kill(record["pid"], signal.SIGKILL)
    root = str(rig.root / "backend")
    wait_for(lambda: records.locked(root, order.attempt_id) is False, "its lock to be free")
    second = rig.backend()
    second.open(reports)
    try:
        end = wait_for(lambda: isinstance(seen := second.observe(order.attempt_id), Exit) and seen, "its end")
        assert end.cause is Cause.LOST
        assert procs.start_time(pid) is None
    finally:
        second.close()


def test_as_a_holder_it_keeps_its_lease_until_it_is_killed(
    tmp_path: Path, reports: Reports, process: subprocess.Popen[bytes]
) -> None:
    processes, later = LinuxProcesses(), Later()
    backend = LeaseBackend(tmp_path, processes, later)
    backend.open(reports)
    try:
        seen = processes.look(process.pid, "test")
        assert seen is not None
        order = LaunchOrder("a7c3b6d11f02-1", ("true",), {}, "/", (), holder=seen.holder)
        backend.launch(order)
        assert backend.observe(order.attempt_id) == Live(process.pid)
        backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.0))
        assert wait_for(lambda: reports.exit(order.attempt_id), "its end").cause is Cause.CANCELLED
        assert process.wait(60) in (-signal.SIGTERM, -signal.SIGKILL)
    finally:
        backend.close()
        later.close()
        processes.close()


def test_a_process_is_spent_only_when_all_of_its_threads_are(process: subprocess.Popen[bytes]) -> None:
    assert not defunct.is_defunct(process.pid), "its first thread has ended, another one runs"
    assert not defunct.is_defunct(os.getpid()) and not defunct.are_all([process.pid], 0)
    process.kill()
    wait_for(lambda: procs.start_time(process.pid) is None, "its end")
    assert defunct.is_defunct(process.pid), "a zombie"
    process.wait()
    assert not defunct.is_defunct(process.pid), "gone: its number may be another's"
