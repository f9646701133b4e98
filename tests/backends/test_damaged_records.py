"""A record that was damaged (a power cut, a hand, a cleaner) costs nobody a server, a GPU or an end that is true."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.adapters.backends import claims, damaged, procs, records
from rota.adapters.backends.local import LocalBackend
from rota.app.ports import LaunchOrder, Live, StopOrder
from rota.core.run import Cause, Exit
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, wait_for

NOT_RECORDS = {
    "empty": b"",
    "cut": b'{"pid": 1, "sta',
    "garbage": os.urandom(64).replace(b"{", b"x"),
    "zeros": b"\0" * 512,
    "a list": b"[]",
    "a word": b"null",
    "an empty object": b"{}",
    "deep": b"[" * 100_000,
}
WRONG_TYPES = {
    "pid": {"pid": "one", "start": [], "tasks": {}, "uid": "me", "boot_id": 7, "tick": "soon"},
    "lock": {"boot_id": 7, "shim": "one", "cgroup": ["/"], "limits": 3},
    "stop": {"cause": 5, "signal": "KILL", "grace_s": [], "saves": "no"},
    "exit": {
        "cause": "exited",
        "code": "0",
        "signal": [],
        "message": 3,
        "oom": "no",
        "started_tick": "x",
        "ended_tick": {},
    },
}


@pytest.fixture(autouse=True)
def nothing_said_yet() -> Iterator[None]:
    damaged.forget()
    yield
    damaged.forget()


@pytest.fixture(params=[*NOT_RECORDS, "wrong types"])
def damage(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Write over a record in place, as the damage of a disk does."""
    kind = str(request.param)

    def do(path: Path) -> None:
        path.write_bytes(NOT_RECORDS[kind] if kind in NOT_RECORDS else json.dumps(WRONG_TYPES[path.name]).encode())

    return do


def lasting(rig: LocalRig, account: str | None = None) -> tuple[LaunchOrder, int]:
    """An attempt that runs while no server is there, and the pid of its supervisor."""
    backend, reports = rig.backend(), Reports()
    backend.open(reports)
    workdir = rig.workdir() if account is None else "/"
    order = rig.order("last for ever", account=account, workdir=workdir)
    backend.launch(order)
    rig.start_of(reports, order)
    record = records.read(str(rig.path(order.attempt_id, "pid")))
    assert record is not None
    uid = None if account is None else pwd.getpwnam(account).pw_uid
    wait_for(lambda: alive(order, uid), "its command to run")
    backend.close()
    return order, int(record["pid"])


def alive(order: LaunchOrder, uid: int | None = None) -> list[int]:
    return procs.marked(order.attempt_id, os.geteuid() if uid is None else uid)


def test_a_live_attempt_whose_pid_record_is_damaged_is_adopted_and_can_be_cancelled(
    rig: LocalRig, reports: Reports, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    order, _ = lasting(rig)
    path = rig.path(order.attempt_id, "pid")
    damage(path)
    backend = rig.backend()
    backend.open(reports)
    try:
        assert backend.observe(order.attempt_id) == Live(None), "it lives, whatever its record says"
        assert alive(order)
        backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=30.0))
        assert rig.end_of(reports, order).cause is Cause.CANCELLED
        assert not alive(order)
    finally:
        backend.close()
    said = [each.getMessage() for each in caplog.records if str(path) in each.getMessage()]
    assert len(said) == 1, "the log names the file, once"


def test_a_live_attempt_is_not_called_lost_because_of_an_exit_record_that_is_none(
    rig: LocalRig, reports: Reports, damage: Callable[[Path], None]
) -> None:
    order, _ = lasting(rig)
    damage(rig.path(order.attempt_id, "exit"))
    backend = rig.backend()
    backend.open(reports)
    try:
        assert isinstance(backend.observe(order.attempt_id), Live)
        assert alive(order)
        backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=30.0))
        assert rig.end_of(reports, order).cause is Cause.CANCELLED, "its supervisor wrote the true one"
    finally:
        backend.close()


def test_an_attempt_whose_exit_record_was_damaged_after_its_end_is_lost_and_not_for_ever_live(
    rig: LocalRig, reports: Reports, damage: Callable[[Path], None]
) -> None:
    first = rig.backend()
    first.open(reports)
    order = rig.order("succeed")
    first.launch(order)
    rig.end_of(reports, order)
    first.close()
    damage(rig.path(order.attempt_id, "exit"))
    backend = rig.backend()
    backend.open(Reports())
    try:
        end = wait_for(lambda: isinstance(seen := backend.observe(order.attempt_id), Exit) and seen, "an end")
        assert (end.cause, end.message) == (Cause.LOST, "its exit record cannot be read")
        assert backend.observe(order.attempt_id) == end, "from now on that is its record"
    finally:
        backend.close()


@pytest.mark.parametrize("files", [("lock",), ("pid",), ("lock", "pid")], ids=" and ".join)
def test_nothing_of_a_deserted_attempt_lives_when_it_is_called_lost(
    rig: LocalRig, reports: Reports, damage: Callable[[Path], None], files: tuple[str, ...]
) -> None:
    order, shim = lasting(rig)
    for name in files:
        damage(rig.path(order.attempt_id, name))
    os.kill(shim, signal.SIGKILL)
    wait_for(lambda: records.locked(str(rig.root / "backend"), order.attempt_id) is False, "its lock to be free")
    left = alive(order)
    backend = rig.backend()
    backend.open(reports)
    try:
        end = wait_for(lambda: isinstance(seen := backend.observe(order.attempt_id), Exit) and seen, "its end")
        assert end.cause is Cause.LOST
        assert not alive(order), f"{left} were to die first"
    finally:
        backend.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to start processes of other accounts")
def test_the_processes_of_another_account_die_too_when_the_record_that_names_it_is_damaged(
    tmp_path: Path, reports: Reports, damage: Callable[[Path], None]
) -> None:
    rig, uid = LocalRig(tmp_path, cgroups=False), pwd.getpwnam("nobody").pw_uid
    order, shim = lasting(rig, account="nobody")
    damage(rig.path(order.attempt_id, "pid"))
    os.kill(shim, signal.SIGKILL)
    wait_for(lambda: records.locked(str(rig.root / "backend"), order.attempt_id) is False, "its lock to be free")
    backend = rig.backend()
    backend.open(reports)
    try:
        end = wait_for(lambda: isinstance(seen := backend.observe(order.attempt_id), Exit) and seen, "its end")
        assert end.cause is Cause.LOST
        assert not alive(order, uid), "before it was called lost"
    finally:
        backend.close()


def test_a_damaged_stop_order_neither_ends_an_attempt_nor_its_supervisor(
    rig: LocalRig, backend: LocalBackend, reports: Reports, damage: Callable[[Path], None]
) -> None:
    order = rig.order("last for ever")
    backend.launch(order)
    rig.start_of(reports, order)
    path = rig.path(order.attempt_id, "stop")
    damage(path)
    record: dict[str, Any] = records.read(str(rig.path(order.attempt_id, "pid"))) or {}
    os.kill(record["pid"], signal.SIGUSR1)
    wait_for(lambda: "stop" in _note(rig, order), "a note of it")
    assert isinstance(backend.observe(order.attempt_id), Live)
    backend.stop(order.attempt_id, StopOrder("cancelled"))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED


def test_a_log_is_read_without_its_record_of_what_was_dropped(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    order = rig.order("say hello")
    backend.launch(order)
    rig.end_of(reports, order)
    for content in (*NOT_RECORDS.values(), b'{"start": "a", "end": []}'):
        rig.path(order.attempt_id, "dropped").write_bytes(content)
        assert backend.read_log(order.attempt_id, 0, 100).content == b"hello\n"


def _note(rig: LocalRig, order: LaunchOrder) -> str:
    try:
        return rig.path(order.attempt_id, "shim.log").read_text()
    except FileNotFoundError:
        return ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to start a process of another account")
def test_a_process_of_another_account_is_not_taken_for_a_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It calls itself one, stands in the data directory and locks a file whose number, on another disk, is the same."""
    directory = tmp_path / "attempts" / "0123456789ab-1"
    directory.mkdir(parents=True)
    (directory / "lock").touch()
    os.chmod(tmp_path, 0o711)  # noqa: S103 - as the data directory of root's server is
    locks = tmp_path / "locks"
    monkeypatch.setattr(claims, "LOCKS", str(locks))

    code = "import ctypes, os, sys, time; ctypes.CDLL(None).prctl(15, b'rota-shim', 0, 0, 0); print(flush=True); "
    inode = (directory / "lock").stat().st_ino
    for uid, is_one in ((os.geteuid(), True), (pwd.getpwnam("nobody").pw_uid, False)):
        become = f"os.chdir({str(tmp_path)!r}); os.setuid({uid}); "
        argv = [sys.executable, "-ISc", f"import os; {become}{code}time.sleep(1000)"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                process.stdout.readline()
                locks.write_text(f"1: FLOCK  ADVISORY  WRITE {process.pid} 08:01:{inode} 0 EOF\n")
                assert (claims._lock_holder(str(directory)) is not None) is is_one
            finally:
                process.kill()
