"""Without a descriptor to look with nothing is known: nobody is taken for dead, and no end is missed for good."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rota.adapters import processes
from rota.adapters.backends import evict, inside, procs, records, task
from rota.adapters.backends.lookers import SPARE
from rota.adapters.backends.shim import Shim
from rota.app.ports import Live, StopOrder
from rota.core.descriptors import shares
from rota.core.run import Cause, Holder
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, wait_for
from tests.backends.test_leases import LeaseRig
from tests.backends.test_limits import host


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process gets no new one: what it has open goes on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open("/", os.O_RDONLY)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def waits_for(path: Path) -> tuple[str, ...]:
    return ("sh", "-c", f"while ! [ -e {path} ]; do sleep 0.01; done; exit 3")


def test_an_end_that_came_meanwhile_is_reported_afterwards(tmp_path: Path) -> None:
    rig, reports = LocalRig(tmp_path), Reports()
    backend = rig.backend()
    backend.open(reports)
    order = rig.order("fail with 3", argv=waits_for(tmp_path / "go"))
    backend.launch(order)
    rig.start_of(reports, order)
    with no_descriptors():
        os.mkdir(tmp_path / "go")
        wait_for(lambda: rig.path(order.attempt_id, "exit").exists(), "it has ended")
        wait_for(lambda: not backend._known[order.attempt_id].ours, "and the watcher was told so, and looked in vain")
    assert rig.end_of(reports, order).code == 3
    backend.close()


def test_an_adopted_attempt_is_followed_as_soon_as_it_can_be(tmp_path: Path) -> None:
    rig, reports, later = LocalRig(tmp_path), Reports(), Reports()
    first = rig.backend()
    first.open(reports)
    order = rig.order("fail with 3", argv=waits_for(tmp_path / "go"))
    first.launch(order)
    rig.start_of(reports, order)
    first.close()
    second = rig.backend()
    second.open(later)
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        second.observe(order.attempt_id)
    before = len(os.listdir("/proc/self/fd"))
    assert isinstance(second.observe(order.attempt_id), Live)
    with no_descriptors():
        os.mkdir(tmp_path / "go")
        wait_for(lambda: rig.path(order.attempt_id, "exit").exists(), "it has ended")
    assert rig.end_of(later, order).code == 3
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before + SPARE, "nothing stays open but what looks")
    second.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LeaseRig]:
    rig = LeaseRig(tmp_path)
    yield rig
    rig.close()


def test_a_holder_that_cannot_be_looked_at_keeps_its_lease(rig: LeaseRig) -> None:
    backend, reports = rig.backend(), Reports()
    backend.open(reports)
    order = rig.order("last for ever")
    backend.launch(order)
    with no_descriptors():
        with pytest.raises(OSError, match="Too many open files"):
            backend.observe(order.attempt_id)
        with pytest.raises(OSError, match="Too many open files"):
            backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.0))
    assert isinstance(backend.observe(order.attempt_id), Live)
    assert reports.exit(order.attempt_id) is None
    backend.close()


def test_the_end_of_a_lease_that_came_meanwhile_is_reported_afterwards(rig: LeaseRig) -> None:
    backend, reports = rig.backend(), Reports()
    backend.open(reports)
    order = rig.order("last for ever")
    backend.launch(order)
    assert order.holder is not None
    with no_descriptors():
        os.kill(order.holder.pid, signal.SIGKILL)
        wait_for(lambda: not rig.processes._watches, "its end was heard")
    assert rig.end_of(reports, order).cause is Cause.RELEASED
    backend.close()


def test_a_kill_that_was_due_meanwhile_is_sent_afterwards(rig: LeaseRig) -> None:
    backend, reports = rig.backend(), Reports()
    backend.open(reports)
    order = rig.order("ignore TERM")
    assert order.holder is not None
    rig.says(order.holder)
    backend.launch(order)
    tried: list[str] = []
    real = backend._kill

    def kill(name: str) -> None:
        tried.append(name)
        real(name)

    backend._kill = kill  # type: ignore[method-assign]
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.2))
    with no_descriptors():
        wait_for(lambda: tried, "its grace is over")
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    backend.close()


LOOKS: dict[str, Callable[[Holder], object]] = {
    "when it began": lambda holder: procs.start_time(holder.pid),
    "its parent": lambda holder: procs.parent(holder.pid),
    "its children": lambda holder: procs.children(holder.pid),
    "its account": lambda holder: procs.uid_of(holder.pid),
    "its mark": lambda holder: procs.has_marker(holder.pid, "0123456789ab-1", os.getuid()),
    "a signal": lambda holder: procs.send(holder.pid, 0, lambda: True),
    "a signal to its family": lambda holder: evict.signal_all([(holder.pid, holder.start_ticks)], 0),
    "its attempt": lambda holder: inside.attempt_of(holder.pid),
}


@pytest.mark.parametrize("what", LOOKS)
def test_no_look_takes_it_for_an_answer(what: str) -> None:
    process = subprocess.Popen(["sleep", "1000"])
    try:
        start = procs.start_time(process.pid)
        assert start is not None
        holder = Holder(process.pid, start, procs.boot_id())
        with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
            LOOKS[what](holder)
    finally:
        process.kill()
        process.wait()


def test_processes_that_are_watched_leave_descriptors_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many people hold leases, and however many connections there are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    watching = processes.LinuxProcesses()
    seen = watching.look(os.getpid(), "test")
    assert seen is not None
    open_now = len(os.listdir("/proc/self/fd"))
    limit = 2 * open_now + 200
    few, as_many_as_you_like = shares(limit), {"holders": 3 * limit, "families": 3 * limit}
    monkeypatch.setattr(processes, "shares", lambda limit: replace(few, **as_many_as_you_like))
    monkeypatch.setattr(
        watching, "_pin", lambda target, uid, may_look: os.pidfd_open(os.getpid())
    )  # stands for many processes
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, hard), hard))
    try:
        with pytest.raises(OSError, match="cannot be watched: Too many open files"):
            for number in range(limit):
                watching.watch(replace(seen.holder, start_ticks=number), lambda: None)
        for _ in range(20):
            os.close(os.open("/", os.O_RDONLY))
        spare = [os.dup(0) for _ in range(20)]
        for each in spare:
            os.close(each)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        watching.close()


WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "spawned": (1, {}),
    "with a memory limit": (1, {"memory_gb": 0.5}),
    "with a terminal": (1, {"terminal": True}),
    "as another account, whose output needs a thread": (2, {"account": "nobody"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_start_for_which_there_is_no_process_left_says_nothing_of_the_run(
    tmp_path: Path, needs: Callable[..., None], way: str
) -> None:
    """The supervisor is in the group of its attempt: with a bound of one it gets no fork and no thread, as where others
    have taken all processes."""
    needs("pids")
    bound, changes = WAYS[way]
    if "account" in changes and os.geteuid() != 0:
        pytest.skip("only root runs jobs as another account")
    tmp_path.chmod(0o755)
    with host(tmp_path, processes=bound) as here:
        for _ in range(3):
            end = here.run(("echo", "hello"), workdir="/", **changes)
            assert (end.cause, end.shortage, end.code) == (Cause.LOST, True, None), end
            assert "as many processes as they may" in end.message
    with host(tmp_path, processes=60) as here:
        assert here.run(("echo", "hello"), workdir="/", **changes).ok


def test_a_start_without_a_terminal_left_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says the same as of a full disk."""

    def refuse() -> tuple[int, int]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "openpty", refuse)
    with pytest.raises(OSError, match="no terminal") as caught:
        Shim.__new__(Shim)._open_terminal()  # it comes to nothing before it needs anything of the attempt
    why = records.shortage(caught.value)
    assert "no terminal" in why and "disk" not in why


def test_an_answer_of_a_workdirs_file_system_is_no_shortage_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in user space answers what its owner likes, and the run would be tried for ever."""
    for code in records.SHORT:

        def refuse(path: str, code: int = code) -> None:
            raise OSError(code, os.strerror(code), path)

        with monkeypatch.context() as patched, pytest.raises(task.Refused, match="workdir"):
            patched.setattr(os, "chdir", refuse)
            task._enter("/somewhere", None)
