"""One backend in front of two: each attempt is carried by one of them, and nothing is run that is only held."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.adapters import processes
from rota.adapters.backends import procs
from rota.adapters.backends.leases import LeaseBackend
from rota.adapters.backends.local import LocalBackend
from rota.adapters.backends.routed import RoutedBackend
from rota.adapters.processes import LinuxProcesses
from rota.app.later import Later
from rota.app.ports import Absent, LaunchOrder, Live, Started, StopOrder
from rota.core.run import Cause
from tests.backends.contract import BackendContract, Reports
from tests.backends.helpers import LocalRig, look_here, wait_for


class RoutedRig(LocalRig):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.processes, self.later = LinuxProcesses(), Later()

    def backend(self) -> RoutedBackend:  # type: ignore[override]
        root = self.root / "backend"
        return RoutedBackend(LocalBackend(root), LeaseBackend(root, self.processes, self.later))

    def close(self) -> None:
        self.later.close()
        self.processes.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RoutedRig]:
    made = RoutedRig(tmp_path)
    yield made
    made.close()


class TestRouted(BackendContract):
    """Jobs notice nothing of the other half."""

    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[RoutedRig]:
        made = RoutedRig(tmp_path)
        yield made
        made.close()


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def backend(rig: RoutedRig, reports: Reports) -> Iterator[RoutedBackend]:
    made = rig.backend()
    made.open(reports)
    yield made
    made.close()


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def lease(rig: RoutedRig, process: subprocess.Popen[bytes]) -> LaunchOrder:
    seen = rig.processes.look(process.pid, "test")
    assert seen is not None
    return rig.order("say hello", holder=seen.holder)


def test_a_lease_is_held_and_its_command_never_run(rig, backend, reports, holder):
    order, job = lease(rig, holder), rig.order("say hello")
    backend.launch(job, order)
    assert rig.start_of(reports, order) == Started(order.attempt_id, holder.pid)
    assert rig.end_of(reports, job).code == 0
    assert backend.observe(order.attempt_id) == Live(holder.pid)
    assert set(backend.strays()) == {order.attempt_id, job.attempt_id}
    assert backend.read_log(order.attempt_id, 0, 100).content == b""
    assert backend.read_log(job.attempt_id, 0, 100).content == b"hello\n"
    assert not rig.path(order.attempt_id, "lock").exists(), "nothing of it was ever claimed as a job"
    os.kill(holder.pid, signal.SIGKILL)
    assert rig.end_of(reports, order).cause is Cause.RELEASED
    for each in (order, job):
        backend.forget(each.attempt_id)
    assert backend.strays() == []
    assert backend.purge(1e12) == 2
    assert backend.observe(order.attempt_id) == backend.observe(job.attempt_id) == Absent()


def test_a_stop_before_the_launch_vetoes_a_lease_too(rig, backend, reports, holder):
    order = lease(rig, holder)
    backend.stop(order.attempt_id, StopOrder("cancelled"))
    end = rig.end_of(reports, order)
    assert end.cause is Cause.NEVER_STARTED
    backend.launch(order)
    wait_for(lambda: len(reports.of(order.attempt_id)) >= 2, "told again")
    assert reports.started(order.attempt_id) is None
    assert backend.observe(order.attempt_id) == end
    assert holder.poll() is None


def test_a_lease_that_cannot_be_given_holds_up_no_job(rig, backend, reports, holder, monkeypatch):
    look_here(monkeypatch)
    monkeypatch.setattr(processes, "MAX_IDLE", 0)
    order, job = lease(rig, holder), rig.order("say hello")
    wait_for(lambda: not rig.processes._watches, "it is not open any more")
    look = procs.start_time

    def no_descriptor(pid: int) -> int | None:
        if pid == holder.pid:
            raise OSError(errno.EMFILE, "Too many open files")
        return look(pid)

    monkeypatch.setattr(procs, "start_time", no_descriptor)
    with pytest.raises(OSError, match="Too many open files"):
        backend.launch(order, job)
    assert rig.end_of(reports, job).code == 0
    monkeypatch.undo()
    backend.launch(order)
    assert rig.start_of(reports, order) == Started(order.attempt_id, holder.pid)


def test_trouble_with_the_jobs_holds_up_no_lease(rig, backend, reports, holder, monkeypatch):
    order, job = lease(rig, holder), rig.order("say hello")

    def full(*orders: LaunchOrder) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(backend._jobs, "launch", full)
        with pytest.raises(OSError, match="No space"):
            backend.launch(job, order)
    assert rig.start_of(reports, order) == Started(order.attempt_id, holder.pid)


def test_a_lease_that_comes_to_the_jobs_by_mistake_is_refused(tmp_path, holder):
    rig, reports = RoutedRig(tmp_path), Reports()
    local = LocalBackend(tmp_path / "backend")
    local.open(reports)
    try:
        order = lease(rig, holder)
        local.launch(order)
        assert rig.end_of(reports, order).cause is Cause.LAUNCH_FAILED
        assert local.read_log(order.attempt_id, 0, 100).content == b""
    finally:
        local.close()
        rig.close()
