"""A process outside that holds the lock of a run's pipe does not keep the run alive."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rota.adapters.backends import pipelocks, procs
from rota.adapters.backends.local import LocalBackend
from rota.adapters.backends.logfile import LogFile
from rota.adapters.backends.pipepump import PipePump
from rota.app.ports import StopOrder
from rota.core.run import Cause
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, descendants, wait_for

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two accounts"),
    pytest.mark.skipif(not pipelocks.CALLS, reason="the numbers of this machine's system calls are not known"),
]
NOBODY = pwd.getpwnam("nobody").pw_uid
# argv: a process, a descriptor of its that is a pipe, and which user id to have
HOLDS = """
import os, socket, sys
pipe = os.open(f"/proc/{sys.argv[1]}/fd/{sys.argv[2]}", os.O_WRONLY)
ours, theirs = socket.socketpair()
os.setuid(int(sys.argv[3]))
os.splice(ours.fileno(), pipe, 1)
"""
Hold = Callable[[int, int], subprocess.Popen[bytes]]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Begin a process of nobody's that holds the lock of a pipe."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(pid: int, fd: int) -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen([sys.executable, "-ISc", HOLDS, str(pid), str(fd), str(NOBODY)], cwd="/"))
        wait_for(lambda: pipelocks._holds_lock(made[-1].pid), "it is in the call")
        return made[-1]

    yield begin
    for each in made:
        each.kill()
        each.wait()


@pytest.mark.parametrize("pipe", ["its output", "one of its own"])
def test_a_run_ends_although_another_holds_the_lock_of_its_pipe(
    rig: LocalRig, backend: LocalBackend, reports: Reports, hold: Hold, pipe: str
) -> None:
    script = "echo ready; exec sleep 1000" if pipe == "its output" else "echo ready; sleep 1000 | sleep 1000"
    order = rig.order("succeed", argv=("sh", "-c", script), account="nobody", workdir="/")
    backend.launch(order)
    pid = rig.start_of(reports, order).pid
    wait_for(lambda: backend.read_log(order.attempt_id, 0, 100).content, "it runs")
    if pipe == "one of its own":
        pid = wait_for(lambda: descendants(pid), "the first of the two")[0]
        wait_for(lambda: os.readlink(f"/proc/{pid}/fd/1") != os.readlink(f"/proc/{pid}/fd/2"), "its end of the pipe")
    holder = hold(pid, 1)
    backend.stop(order.attempt_id, StopOrder("cancelled"))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert holder.wait(60) == -9
    said = backend.read_log(order.attempt_id, 0, 10_000).content
    assert b"held the lock of a pipe (splice) and kept it from ending, and was killed" in said


def test_a_supervisor_that_waits_for_the_lock_of_the_output_is_freed(hold: Hold, tmp_path: Path) -> None:
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    pump = PipePump(LogFile(log, 0))
    task = os.dup(pump.output)
    pump.start()
    holder = hold(os.getpid(), task)
    pump.finish()
    wait_for(lambda: pipelocks.is_waiting(os.getpid()), "the thread waits for the lock")
    assert not pump.is_over(0.01)
    assert pipelocks.end([os.getpid()], 1) == [], "it is none of that account's"
    (said,) = pipelocks.end([os.getpid()], NOBODY)
    assert f"process {holder.pid}" in said
    assert pump.is_over(60)
    pump.close()
    os.close(task)
    os.close(log)


def test_nobody_is_killed_where_nothing_waits_for_a_pipe(hold: Hold) -> None:
    reading, writing = os.pipe()
    holder = hold(os.getpid(), writing)
    assert pipelocks.end([os.getpid()], NOBODY) == []
    assert procs.start_time(holder.pid) is not None
    holder.kill()
    holder.wait()
    os.close(reading)
    os.close(writing)
