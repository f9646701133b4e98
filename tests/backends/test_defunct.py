"""A killed attempt gives its GPUs back although a process outside it leaves one of its ended processes unreaped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rota.adapters.backends import defunct, procs, records
from rota.adapters.backends.leases import LeaseBackend
from rota.adapters.backends.local import LocalBackend
from rota.adapters.processes import LinuxProcesses
from rota.app.later import Later
from rota.app.ports import LaunchOrder, Live, StopOrder
from rota.core.run import Cause
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, command_lines, descendants, opened, patched_launcher, wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a pid namespace")

# argv: how many pid namespaces to make, each inside the one before
NESTS = """
import ctypes, os, sys, time
for _ in range(int(sys.argv[1])):
    if ctypes.CDLL(None).unshare(0x20000000):
        os.write(1, b"refused\\n")
        sys.exit(1)
    if os.fork():
        break
else:
    os.write(1, b"ready\\n")
while True:
    time.sleep(1000)
"""
# argv: a process whose pid namespace to enter; whether what it starts there ends, or is kept on its way out; and which
# user id to have then
ENTERS = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
space = os.open(f"/proc/{sys.argv[1]}/ns/pid", os.O_RDONLY)
if libc.setns(space, 0x20000000):
    sys.exit("refused")
child = os.fork()
if child == 0:
    while sys.argv[2] == "traced":
        time.sleep(1000)
    os._exit(0)
if sys.argv[2] == "traced" and libc.ptrace(0x4206, child, None, ctypes.c_void_p(0x40)):  # stops at its exit
    sys.exit("refused")
os.setuid(int(sys.argv[3]))
print(child, flush=True)
time.sleep(1000)
"""
# argv: a process whose pid namespace to enter, whether to wash the mark off, and a text to be found by
GIVES_AWAY = """
import ctypes, os, sys, time
space = os.open(f"/proc/{sys.argv[1]}/ns/pid", os.O_RDONLY)
if ctypes.CDLL(None).setns(space, 0x20000000):
    sys.exit("refused")
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    if os.fork() == 0:
        while os.getppid() == 2:  # that is not what an orphan of this namespace has
            time.sleep(0.001)
        os.set_inheritable(writer, True)
        code = f"import os, time; os.write({writer}, b'!'); os.close({writer}); time.sleep(1000)"
        env = {} if sys.argv[2] == "True" else os.environ
        os.execve(sys.executable, [sys.executable, "-ISc", code, sys.argv[3]], env)
    os._exit(0)
os.waitpid(child, 0)
os.close(writer)
sys.exit(os.read(reader, 1) != b"!")
"""
ANOTHER = 65534
Enter = Callable[..., tuple[subprocess.Popen[str], int]]


@pytest.fixture
def enter() -> Iterator[Enter]:
    """Begin a process outside that keeps another one, which is in the pid namespace of the one given."""
    made: list[subprocess.Popen[str]] = []

    def begin(pid: int, how: str, uid: int = 0) -> tuple[subprocess.Popen[str], int]:
        argv = [sys.executable, "-ISc", ENTERS, str(pid), how, str(uid)]
        made.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd="/"))
        stdout = made[-1].stdout
        assert stdout is not None
        return made[-1], int(stdout.readline())

    yield begin
    for each in made:
        each.kill()
        each.communicate()


def nested(rig: LocalRig, backend: LocalBackend, reports: Reports, depth: int) -> tuple[LaunchOrder, list[int]]:
    """A run in so many namespaces; its processes, the innermost last."""
    order = rig.order("succeed", argv=(sys.executable, "-ISc", NESTS, str(depth)))
    backend.launch(order)
    task = rig.start_of(reports, order).pid
    said = wait_for(lambda: backend.read_log(order.attempt_id, 0, 100).content, "its namespaces")
    if said != b"ready\n":
        pytest.skip("this machine lets nobody make a pid namespace")
    return order, [task, *descendants(task)]


@pytest.mark.parametrize("depth", [1, 3])
def test_a_zombie_that_is_kept_in_its_pid_namespace_does_not_hold_the_end_of_a_run(
    rig: LocalRig, backend: LocalBackend, reports: Reports, enter: Enter, depth: int
) -> None:
    order, family = nested(rig, backend, reports, depth)
    keeper, zombie = enter(family[-1], "ends")
    wait_for(lambda: procs.start_time(zombie) is None, "the zombie")
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0))
    end = rig.end_of(reports, order)
    assert (end.cause, end.signal) == (Cause.CANCELLED, signal.SIGKILL)
    assert keeper.poll() is None, "nobody ended what is not the run's"
    assert str(family[-1]) in rig.path(order.attempt_id, "shim.log").read_text()
    after = rig.order("succeed")
    backend.launch(after)
    assert rig.end_of(reports, after).ok, "and its supervisor is in nobody's way"


def test_nor_does_it_hold_the_end_of_one_whose_supervisor_was_killed(
    rig: LocalRig, backend: LocalBackend, reports: Reports, enter: Enter
) -> None:
    order, family = nested(rig, backend, reports, 2)
    enter(family[-1], "ends")
    shim = procs.parent(family[0])
    assert shim is not None
    os.kill(shim, signal.SIGKILL)
    assert rig.end_of(reports, order).cause is Cause.LOST


def test_a_zombie_that_another_account_traces_does_not_hold_it_either(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    """Such a tracer is named and left alone, and the task itself is the zombie."""
    order = rig.order("last for ever", account="nobody", workdir="/")
    backend.launch(order)
    pid = rig.start_of(reports, order).pid
    code = "import ctypes, sys, time; print(ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), None, None), flush=True)"
    argv = [sys.executable, "-ISc", f"{code}; time.sleep(1000)", str(pid)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as tracer:
        try:
            assert tracer.stdout is not None
            if tracer.stdout.readline() != "0\n":
                pytest.skip("this machine does not let a process be traced by another")
            backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0))
            end = rig.end_of(reports, order)
            assert (end.cause, end.signal) == (Cause.CANCELLED, signal.SIGKILL)
            assert tracer.poll() is None
            assert f"process {tracer.pid} " in rig.path(order.attempt_id, "shim.log").read_text()
        finally:
            tracer.kill()


def test_who_may_still_hold_something_in_the_namespace_is_waited_for(
    rig: LocalRig, backend: LocalBackend, reports: Reports, enter: Enter
) -> None:
    """It is on its way out as well, but has its files: a process in a call of a driver is like that."""
    order, family = nested(rig, backend, reports, 2)
    keeper, kept = enter(family[-1], "traced", ANOTHER)
    assert not any(map(defunct.is_defunct, family))
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0))
    wait_for(
        lambda: all(map(defunct.is_defunct, family[1:])), "the first processes to wait for the rest of their namespaces"
    )
    assert not defunct.is_defunct(kept)
    assert not defunct.are_all(family[1:], 0) and not defunct.are_all(family[1:2], 0)
    assert reports.exit(order.attempt_id) is None
    keeper.kill()
    assert rig.end_of(reports, order).cause is Cause.CANCELLED


@pytest.mark.parametrize("depth", [1, 3])
def test_what_keeps_another_in_the_namespace_by_tracing_it_is_killed_if_it_has_the_account_of_the_run(
    rig: LocalRig, backend: LocalBackend, reports: Reports, enter: Enter, depth: int
) -> None:
    order, family = nested(rig, backend, reports, depth)
    keeper, kept = enter(family[-1], "traced")
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert procs.start_time(kept) is None
    assert keeper.wait() == -signal.SIGKILL
    assert f"process {keeper.pid} " in rig.path(order.attempt_id, "shim.log").read_text()


def test_what_a_run_leaves_in_the_pid_namespace_of_another_ends_with_it(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    """It has become a child of the first process there, which is no process of this run."""
    other, family = nested(rig, backend, reports, 1)
    claim = records.read(str(rig.path(other.attempt_id, "lock")))
    assert claim is not None
    held = bool(claim["cgroup"])  # else only the mark tells whose it is
    text = f"given away by {rig.root}"
    order = rig.order("succeed", argv=(sys.executable, "-ISc", GIVES_AWAY, str(family[-1]), str(held), text))
    backend.launch(order)
    end = rig.end_of(reports, order)
    assert command_lines(text) == []
    assert end.ok, backend.read_log(order.attempt_id, 0, 1000).content
    assert all(procs.start_time(pid) for pid in family), "they are another run's"
    assert reports.exit(other.attempt_id) is None


# As on a machine without a usable group of cgroup v2.
V1_ALONE = """
from rota.adapters.backends import confine
confine._probe_unified = lambda mount, home, name: ("", {})
"""


def test_the_same_with_cgroup_v1_alone(tmp_path: Path, reports: Reports) -> None:
    """An open list of the processes of such a group is an old one for a second, here from the run before."""
    rig = LocalRig(tmp_path, cgroups=True, zygote_prefix=patched_launcher(V1_ALONE))
    with opened(rig, reports) as backend:
        _, family = nested(rig, backend, reports, 1)
        text = f"given away by {rig.root}"
        for argv in (("true",), (sys.executable, "-ISc", GIVES_AWAY, str(family[-1]), "False", text)) * 2:
            order = rig.order("succeed", argv=argv)
            backend.launch(order)
            assert rig.end_of(reports, order).ok, backend.read_log(order.attempt_id, 0, 1000).content
            assert command_lines(text) == []


@pytest.mark.parametrize("rig", [True], ids=["cgroups"], indirect=True)  # without them nothing counts processes
def test_a_zombie_in_the_pid_namespace_of_another_run_takes_no_place_from_the_next_run(
    rig: LocalRig, backend: LocalBackend, reports: Reports, needs: Callable[..., None]
) -> None:
    """The first process of that namespace does not reap it, and the kernel counts it in the group of the worker."""
    needs("pids")
    _, family = nested(rig, backend, reports, 1)
    text = f"given away by {rig.root}"
    order = rig.order("succeed", argv=(sys.executable, "-ISc", GIVES_AWAY, str(family[-1]), "False", text))
    backend.launch(order)
    assert rig.end_of(reports, order).ok
    claim = records.read(str(rig.path(order.attempt_id, "lock")))
    assert claim is not None
    wait_for(lambda: procs.start_time(claim["shim"]) != claim["start"], "the worker to retire")


def test_a_holder_that_cannot_leave_is_looked_at_by_itself_and_its_lease_can_be_released(
    tmp_path: Path, reports: Reports, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account may have a thousand leases on it, and the writer looks at each in every round."""
    processes, later = LinuxProcesses(), Later()
    backend = LeaseBackend(tmp_path, processes, later)
    backend.open(reports)
    with subprocess.Popen([sys.executable, "-ISc", NESTS, "1"], stdout=subprocess.PIPE) as outer:
        try:
            assert outer.stdout is not None
            if outer.stdout.readline() != b"ready\n":
                pytest.skip("this machine lets nobody make a pid namespace")
            (first,) = descendants(outer.pid)
            enter(first, "traced")
            seen = processes.look(first, "test")
            assert seen is not None
            order = LaunchOrder("a7c3b6d11f02-1", ("true",), {}, "/", (), holder=seen.holder)
            backend.launch(order)
            os.kill(first, signal.SIGKILL)
            wait_for(lambda: defunct.is_defunct(first), "it to wait for the rest of its namespace")
            looks: list[None] = []
            every = procs.all_pids

            def counted() -> Iterator[int]:
                looks.append(None)
                return every()

            monkeypatch.setattr(procs, "all_pids", counted)
            assert isinstance(backend.observe(order.attempt_id), Live)
            assert not looks, "one lease is no reason to look at all processes"
            backend.stop(order.attempt_id, StopOrder("released"))
            assert wait_for(lambda: reports.exit(order.attempt_id), "its end").cause is Cause.RELEASED
        finally:
            outer.kill()
            backend.close()
            later.close()
            processes.close()
