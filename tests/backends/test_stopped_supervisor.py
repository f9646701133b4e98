"""On a server of an ordinary account a job can stop its supervisor: limits and cancels hold all the same."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.adapters.backends import procs, records
from rota.adapters.backends.local import LocalBackend
from rota.app.ports import LaunchOrder, StopOrder
from rota.core.run import Cause
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, command_lines, wait_for

MNT_DETACH = 2
# From its first moment, before its supervisor could record a pid.
STOP_IT = "kill -STOP $PPID; echo stopped; sleep 1000; :"


def launch(rig: LocalRig, backend: LocalBackend, line: str) -> tuple[LaunchOrder, str]:
    mark = f"stopper{os.urandom(4).hex()}"
    order = rig.order("succeed", argv=("sh", "-c", line, mark))
    backend.launch(order)
    wait_for(lambda: b"stopped" in backend.read_log(order.attempt_id, 0, 100).content, "the job to stop its supervisor")
    return order, mark


def test_a_cancel_continues_a_stopped_supervisor(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    order, mark = launch(rig, backend, STOP_IT)
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert command_lines(mark) == []


def test_one_that_is_stopped_again_and_again_is_killed_when_its_end_is_overdue(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    """Another process of the account does it, so that the supervisor never gets to do anything."""
    order, mark = launch(rig, backend, STOP_IT)
    lock = records.read(str(rig.path(order.attempt_id, "lock"))) or {}
    shim = os.pidfd_open(lock["shim"])
    stopper = os.fork()
    if stopper == 0:
        with contextlib.suppress(OSError):  # until it is gone
            while True:
                signal.pidfd_send_signal(shim, signal.SIGSTOP)
        os._exit(0)
    try:

        def over() -> bool:
            backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0, overdue=True))
            return reports.exit(order.attempt_id) is not None

        wait_for(over, "its end")
    finally:
        os.kill(stopper, signal.SIGKILL)
        os.waitpid(stopper, 0)
        os.close(shim)
    assert command_lines(mark) == []


def test_one_that_is_not_continued_is_killed_without_another_stop(
    rig: LocalRig, backend: LocalBackend, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, mark = launch(rig, backend, STOP_IT)
    wait_for(lambda: "state T" in backend.stalled_by(order.attempt_id), "its supervisor to be stopped, and that said")
    monkeypatch.setattr(backend, "_wake", lambda name, shim: None)
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0, overdue=True))
    assert rig.end_of(reports, order).cause is Cause.LOST
    assert command_lines(mark) == []


@pytest.fixture
def silent_directory(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system that answers nothing, as one whose server is gone."""
    place = tmp_path / "silent"
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    try:
        options = f"fd={device},rootmode=40755,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"silent", bytes(place), b"fuse", 0, options) != 0:
            pytest.skip(f"this account may not mount: {os.strerror(ctypes.get_errno())}")
        try:
            yield place
        finally:
            libc.umount2(bytes(place), MNT_DETACH)
    finally:
        os.close(device)


@pytest.mark.parametrize("where", ["workdir", "command", "interpreter", "path"])
def test_one_that_waits_for_a_file_system_before_its_command_is_killed_when_its_end_is_overdue(
    rig: LocalRig, backend: LocalBackend, reports: Reports, silent_directory: Path, where: str
) -> None:
    """Nothing of the run exists yet, and its supervisor hears nothing: its GPUs must not be lost until a restart."""
    program = f"{silent_directory}/program"
    script = silent_directory.with_name("script")
    script.write_text(f"#!{program}\n")
    script.chmod(0o755)
    order = rig.order(
        "succeed",
        argv={"workdir": ("true",), "command": (program,), "interpreter": (str(script),), "path": ("true",)}[where],
        workdir=str(silent_directory) if where == "workdir" else "/",
        env={"PATH": f"{silent_directory}:/usr/bin:/bin" if where == "path" else "/usr/bin:/bin"},
    )
    backend.launch(order)
    wait_for(rig.path(order.attempt_id, "lock").exists, "a supervisor to claim it")
    lock = records.read(str(rig.path(order.attempt_id, "lock"))) or {}
    wait_for(lambda: procs.waits_in_kernel(lock["shim"]), "its supervisor to wait for the file system")
    below = procs.children(lock["shim"])
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0))

    def over() -> bool:
        backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0, overdue=True))
        return reports.exit(order.attempt_id) is not None

    wait_for(over, "its end")
    assert [pid for pid in (lock["shim"], *below) if procs.start_time(pid) is not None] == []
    after = rig.order("succeed")
    backend.launch(after)
    assert rig.end_of(reports, after).ok, "others start"
