"""On a server of an ordinary account a job can stop the launcher (the zygote) or its idle workers: others start all the
same, and each once."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from rota.adapters.backends import local, procs
from rota.adapters.backends.local import LocalBackend
from rota.app.ports import LaunchOrder
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, look_here, wait_for


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "CLAIMED_WITHIN_S", 0.2)
    monkeypatch.setattr(local, "CONTINUED_WITHIN_S", 0.2)


def launcher_of(backend: LocalBackend) -> int:
    pid = backend._launcher.pid
    assert pid is not None
    wait_for(lambda: backend.enforced() is not None and len(procs.children(pid)) >= 2, "a launcher with idle workers")
    return pid


def writing(rig: LocalRig, where: Path) -> LaunchOrder:
    """Return an order whose command leaves a line each time it is run."""
    return rig.order("succeed", argv=("sh", "-c", f"echo begun >> {where}"))


@pytest.fixture
def in_vain(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be continued, as where the job stops it again each time, before it gets to do anything."""
    send = backend._launcher.send

    def but_continue(signum: int, pids: Iterable[int]) -> None:
        if signum != signal.SIGCONT:
            send(signum, pids)

    monkeypatch.setattr(backend._launcher, "send", but_continue)


def test_a_launcher_that_was_stopped_is_continued(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path
) -> None:
    launcher = launcher_of(backend)
    os.kill(launcher, signal.SIGSTOP)
    orders = [writing(rig, tmp_path / "begun") for _ in range(3)]
    backend.launch(*orders)
    for order in orders:
        assert rig.end_of(reports, order).ok
    assert backend._launcher.pid == launcher, "it was not made anew"
    assert (tmp_path / "begun").read_text() == "begun\n" * 3


def test_a_look_that_fails_is_repeated(
    rig: LocalRig, backend: LocalBackend, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = launcher_of(backend)
    failed: list[int] = []

    def none_is_free(pid: int) -> bool:
        failed.append(pid)
        if len(failed) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return is_stopped(pid)

    is_stopped = procs.is_stopped
    look_here(monkeypatch)
    monkeypatch.setattr(procs, "is_stopped", none_is_free)
    os.kill(launcher, signal.SIGSTOP)
    order = rig.order("succeed")
    backend.launch(order)
    assert rig.end_of(reports, order).ok
    assert len(failed) > 1


def test_a_launcher_that_is_stopped_again_and_again_is_made_anew_and_starts_nothing_twice(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path, in_vain: None
) -> None:
    launcher = launcher_of(backend)
    os.kill(launcher, signal.SIGSTOP)
    orders = [writing(rig, tmp_path / "begun") for _ in range(3)]
    backend.launch(*orders)
    for order in orders:
        assert rig.end_of(reports, order).ok
    assert backend._launcher.pid != launcher
    assert (tmp_path / "begun").read_text() == "begun\n" * 3


def test_what_a_stopped_launcher_had_begun_lives_on_when_it_is_made_anew(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path, in_vain: None
) -> None:
    lasting = rig.order("last for ever")
    backend.launch(lasting)
    rig.start_of(reports, lasting)
    os.kill(launcher_of(backend), signal.SIGSTOP)
    order = writing(rig, tmp_path / "begun")
    backend.launch(order)
    assert rig.end_of(reports, order).ok
    assert reports.exit(lasting.attempt_id) is None, "it runs on"


def test_idle_workers_that_were_stopped_are_continued(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path
) -> None:
    for worker in procs.children(launcher_of(backend)):
        os.kill(worker, signal.SIGSTOP)
    order = writing(rig, tmp_path / "begun")
    backend.launch(order)
    assert rig.end_of(reports, order).ok
    assert (tmp_path / "begun").read_text() == "begun\n"


@pytest.mark.parametrize("is_killed", [False, True])
def test_idle_workers_that_were_stopped_do_not_outlive_the_launcher(backend: LocalBackend, is_killed: bool) -> None:
    launcher = launcher_of(backend)
    workers = {pid: os.pidfd_open(pid) for pid in procs.children(launcher)}
    try:
        for pid in workers:
            name = Path(f"/proc/{pid}/comm")
            wait_for(lambda name=name: name.read_text() == "rota-shim\n", "a worker that is ready")  # type: ignore[misc]
        for worker in workers.values():
            signal.pidfd_send_signal(worker, signal.SIGSTOP)
        for pid in workers:
            wait_for(lambda pid=pid: procs.is_stopped(pid), "a worker that is stopped")  # type: ignore[misc]
        if is_killed:
            os.kill(launcher, signal.SIGKILL)
        else:
            backend.close()
        wait_for(lambda: len(select.select(workers.values(), [], [], 0)[0]) == len(workers), "the end of the workers")
    finally:
        for worker in workers.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(worker, signal.SIGKILL)
            os.close(worker)


def test_idle_workers_that_are_stopped_again_and_again_are_killed_and_no_supervisor_is(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path, in_vain: None
) -> None:
    lasting = rig.order("last for ever")
    backend.launch(lasting)
    rig.start_of(reports, lasting)
    for worker in procs.children(launcher_of(backend)):
        os.kill(worker, signal.SIGSTOP)
    order = writing(rig, tmp_path / "begun")
    backend.launch(order)
    assert rig.end_of(reports, order).ok
    assert (tmp_path / "begun").read_text() == "begun\n"
    assert reports.exit(lasting.attempt_id) is None, "its supervisor was stopped as well, and lives"
