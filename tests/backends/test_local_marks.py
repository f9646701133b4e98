"""The mark in the environment counts only on processes of the attempt's own account: anybody may set a variable."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rota.adapters.backends import claims, confine, inside, local, procs, records
from rota.app.ports import LaunchOrder, StopOrder
from rota.core.run import Cause, Exit
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, look_here, wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to start processes of other accounts")

OWNER, STRANGER = "nobody", "daemon"
OWNER_UID, STRANGER_UID = pwd.getpwnam(OWNER).pw_uid, pwd.getpwnam(STRANGER).pw_uid
# $0 is a mark. Whenever its child is killed it starts another one, and says so
PERSISTS = f'while :; do {procs.MARKER}="$0" sleep 1000 & echo $!; wait; done'


@pytest.fixture
def rig(tmp_path: Path) -> LocalRig:
    return LocalRig(tmp_path, cgroups=False)  # where there is no cgroup, the mark is all there is


@contextlib.contextmanager
def persistent(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = ["sh", "-c", PERSISTS, mark]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd="/", user=STRANGER, start_new_session=True) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def deserted(
    rig: LocalRig, reports: Reports, account: str | None, script: str = "exec sleep 1000", processes: int = 1
) -> LaunchOrder:
    """An attempt of so many processes whose supervisor was killed while no server was there."""
    backend = rig.backend()
    backend.open(reports)
    order = rig.order("succeed", argv=("sh", "-c", script), workdir="/", account=account)
    backend.launch(order)
    rig.start_of(reports, order)
    uid = os.getuid() if account is None else pwd.getpwnam(account).pw_uid
    wait_for(lambda: len(procs.marked(order.attempt_id, uid)) == processes, "all its processes")
    record = records.read(str(rig.path(order.attempt_id, "pid")))
    assert record is not None
    backend.close()
    os.kill(record["pid"], signal.SIGKILL)
    root = str(rig.root / "backend")
    wait_for(lambda: records.locked(root, order.attempt_id) is False, "its lock to be free")
    return order


@pytest.mark.parametrize("account", [OWNER, None], ids=["another account", "the server's own"])
def test_a_strangers_mark_neither_keeps_a_dead_attempt_running_nor_costs_the_stranger_anything(
    rig: LocalRig, reports: Reports, account: str | None
) -> None:
    order = deserted(rig, reports, account)
    with persistent(order.attempt_id) as stranger:
        assert stranger.stdout is not None
        child = int(stranger.stdout.readline())
        backend = rig.backend()
        backend.open(reports)
        try:
            end = wait_for(lambda: isinstance(seen := backend.observe(order.attempt_id), Exit) and seen, "its end")
            assert end.cause is Cause.LOST
            backend.sweep(order.attempt_id, account)
        finally:
            backend.close()
        assert procs.start_time(child) is not None, "the stranger's process was not touched"


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "by an older version"])
def test_what_an_attempt_left_behind_as_its_own_account_is_swept_by_its_mark(
    rig: LocalRig, reports: Reports, recorded: bool
) -> None:
    """Its supervisor is dead, and so is the zygote that would have taken in what has slipped away."""
    order = deserted(rig, reports, OWNER, "setsid sleep 1000 & setsid sleep 1000 & exec sleep 1000", 3)
    if not recorded:
        path = rig.path(order.attempt_id, "pid")
        record = json.loads(path.read_text())
        del record["uid"]
        path.write_text(json.dumps(record))
        os.chown(rig.path(order.attempt_id, "log"), OWNER_UID, -1)  # which had the log belong to the job's account
    assert len(procs.marked(order.attempt_id, OWNER_UID)) >= 2
    backend = rig.backend()
    backend.open(reports)
    try:
        wait_for(lambda: isinstance(backend.observe(order.attempt_id), Exit), "its end")
        assert procs.marked(order.attempt_id, OWNER_UID) == []
    finally:
        backend.close()


def test_what_a_service_has_taken_out_of_a_group_of_roots_is_swept_by_its_mark(
    tmp_path: Path, reports: Reports
) -> None:
    """As `systemd-run --user --scope` and rootless containers do."""
    mount = next((mount for kind, mount, _ in confine._mounts() if kind == "cgroup2"), "")
    if not mount:
        pytest.skip("no cgroup v2 here")
    order = deserted(LocalRig(tmp_path), reports, OWNER, "setsid sleep 1000 & exec sleep 1000", 2)
    wait_for(
        lambda: len(procs.marked(order.attempt_id, OWNER_UID)) == 1, "its first process to end with its supervisor"
    )
    (left,) = procs.marked(order.attempt_id, OWNER_UID)
    confine.write(f"{mount}/cgroup.procs", str(left))
    backend = LocalRig(tmp_path).backend()
    backend.open(reports)
    try:
        wait_for(lambda: isinstance(backend.observe(order.attempt_id), Exit), "its end")
        assert procs.marked(order.attempt_id, OWNER_UID) == []
    finally:
        backend.close()


def test_where_a_group_of_roots_is_empty_a_look_for_the_mark_does_not_have_to_end(
    tmp_path: Path, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else thousands of processes of the account, with megabytes of environment each, keep its dead runs alive."""
    rig = LocalRig(tmp_path)
    order = deserted(rig, reports, OWNER, "setsid sleep 1000 & setsid sleep 1000 & exec sleep 1000", 3)
    real = procs._marked

    had_s = list[float]()

    def cut_short(attempt_id: str, uid: int | None, installation: str, deadline: float, pids: object = None) -> object:
        had_s.append(deadline - time.monotonic())
        if had_s[-1] < claims.BURIAL_S - 1:  # a machine may be so slow that it proves nothing
            time.sleep(max(0.0, had_s[-1]))
        return [], False

    backend = rig.backend()
    with monkeypatch.context() as patched:
        look_here(patched)
        patched.setattr(local, "BURY_AGAIN_S", 0.01)
        patched.setattr(procs, "_marked", cut_short)
        backend.open(reports)
        try:
            wait_for(lambda: isinstance(backend.observe(order.attempt_id), Exit), "its end")
        finally:
            backend.close()
    assert procs._marked is real
    assert max(had_s) == had_s[-1] > claims.BURIAL_S - 1, had_s
    assert procs.marked(order.attempt_id, OWNER_UID) == []


def test_an_attempt_of_an_older_version_whose_log_was_removed_ends(rig: LocalRig, reports: Reports) -> None:
    order = deserted(rig, reports, OWNER)
    path = rig.path(order.attempt_id, "pid")
    record = json.loads(path.read_text())
    del record["uid"]
    path.write_text(json.dumps(record))
    rig.path(order.attempt_id, "log").unlink()
    backend = rig.backend()
    backend.open(reports)
    try:
        wait_for(lambda: isinstance(backend.observe(order.attempt_id), Exit), "its end")
    finally:
        backend.close()


def test_two_servers_of_one_account_with_the_same_id_leave_each_others_processes_alone(
    rig: LocalRig, reports: Reports, tmp_path: Path
) -> None:
    """Ids go by the time, so two servers can give the same one."""
    (tmp_path / "other").mkdir()
    other = LocalRig(tmp_path / "other", cgroups=False)
    order = deserted(rig, reports, OWNER)
    here, there, heard = rig.backend(), other.backend(), Reports()
    there.open(heard)
    try:
        twin = replace(other.order("succeed", argv=("sleep", "1000"), workdir="/"), attempt_id=order.attempt_id)
        twin = replace(twin, account=OWNER)
        there.launch(twin)
        theirs = other.start_of(heard, twin).pid
        here.open(reports)
        wait_for(lambda: isinstance(here.observe(order.attempt_id), Exit), "the end of the first one")
        here.sweep(order.attempt_id, OWNER)
        assert procs.marked(order.attempt_id, OWNER_UID) == [theirs], (
            "nothing of the first is left, and all of the twin"
        )
        there.stop(twin.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0))
        assert other.end_of(heard, twin).cause is Cause.CANCELLED
    finally:
        here.close()
        there.close()


def test_an_attempt_without_any_record_is_swept_as_its_account(rig: LocalRig, reports: Reports) -> None:
    mark = "0123456789ab-1"
    backend = rig.backend()
    backend.open(reports)
    env = {procs.MARKER: mark, "PATH": "/usr/bin:/bin"}
    people = {name: subprocess.Popen(["sleep", "1000"], env=env, user=name) for name in (OWNER, STRANGER)}
    try:
        for name, process in people.items():
            uid = pwd.getpwnam(name).pw_uid
            wait_for(partial(procs.has_marker, process.pid, mark, uid), "its exec")
        backend.sweep(mark, OWNER)
        assert people[OWNER].wait(60) == -signal.SIGKILL
        backend.sweep(mark, "no-such-account")
        backend.sweep(mark, None)
        assert people[STRANGER].poll() is None
    finally:
        backend.close()
        for process in people.values():
            process.kill()
            process.wait()


def test_a_program_that_a_stranger_runs_with_the_accounts_rights_is_the_strangers() -> None:
    """As every setuid program is: its environment is the caller's choice."""
    mark = "0123456789ab-1"
    become = f"os.setresuid({STRANGER_UID}, {OWNER_UID}, {OWNER_UID})"
    code = f"import os; {become}; os.execve('/bin/sleep', ['sleep', '1000'], {{'{procs.MARKER}': '{mark}'}})"
    with subprocess.Popen([sys.executable, "-ISc", code]) as process:
        try:
            wait_for(lambda: procs.has_marker(process.pid, mark, STRANGER_UID), "its exec")
            assert not procs.has_marker(process.pid, mark, OWNER_UID)
            assert not procs.has_marker(process.pid, mark, 0)
        finally:
            process.kill()


# Says that its environment is so many bytes of memory, each of them this one. Any process may; zeros cost it nothing.
BOUNDLESS = """
import ctypes, os, sys, time
size, byte = int(sys.argv[1]), int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
os.setuid(int(sys.argv[3]))
libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
base = libc.mmap(None, size, 3, 0x22 | 0x4000, -1, 0)
if byte:
    ctypes.memset(base, byte, size)
stat = open("/proc/self/stat").read().rpartition(")")[2].split()
places = [int(stat[field - 3]) for field in (26, 27, 45, 46, 47)]
places += [libc.sbrk(0), int(stat[28 - 3]), int(stat[48 - 3]), int(stat[49 - 3]), base, base + size]
class Map(ctypes.Structure):
    _fields_ = [("places", ctypes.c_uint64 * 11), ("auxv", ctypes.c_void_p)]
    _fields_ += [("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32)]
told = Map((ctypes.c_uint64 * 11)(*places), None, 0, 0xFFFFFFFF)
done = libc.prctl(35, 14, ctypes.byref(told), ctypes.sizeof(told), 0)
print("told" if done == 0 else os.strerror(ctypes.get_errno()), flush=True)
time.sleep(1000)
"""


@contextlib.contextmanager
def boundless(size: int, byte: int) -> Iterator[int]:
    argv = [sys.executable, "-ISc", BOUNDLESS, str(size), str(byte), str(OWNER_UID)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd="/") as process:
        try:
            assert process.stdout is not None
            if (said := process.stdout.readline()) != b"told\n":
                pytest.skip(f"this kernel does not let a process say where its environment is: {said!r}")
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("byte", [0, ord("A")], ids=["zeros", "one-variable"])
def test_how_much_is_read_of_one_process_is_not_its_choice(byte: int) -> None:
    """Memory and time of the server go by what is read: it can be any amount."""
    with boundless(32 << 20, byte) as pid:
        for look in (partial(procs.has_marker, uid=OWNER_UID, installation="0" * 16), lambda pid, _: inside._mark(pid)):
            before = int(Path("/proc/self/io").read_text().split()[1])  # bytes that were read, from files of any kind
            assert not look(pid, "0123456789ab-1")
            assert int(Path("/proc/self/io").read_text().split()[1]) - before < 16 << 20


def test_a_mark_is_found_wherever_it_is_in_a_large_environment() -> None:
    mark, ours, others = "0123456789ab-1", "a" * 16, "b" * 16
    for before in (0, procs.MAX_PROC_READ - 70, procs.MAX_PROC_READ - 40, procs.MAX_PROC_READ + 10):
        fill = {f"F{number}": "x" * 99_995 for number in range(before // 100_000)}
        env = {**fill, "REST": "x" * (before % 100_000), procs.MARKER: mark, procs.INSTALLATION: ours}
        with subprocess.Popen(["sleep", "1000"], env=env, user=OWNER) as process:
            try:
                wait_for(partial(procs.has_marker, process.pid, mark, OWNER_UID), f"its exec ({before})")
                assert procs.has_marker(process.pid, mark, OWNER_UID, ours), before
                assert not procs.has_marker(process.pid, mark, OWNER_UID, others), before
                assert not procs.has_marker(process.pid, mark[:-1], OWNER_UID), before
                assert inside._mark(process.pid) == mark
            finally:
                process.kill()


def test_a_sweep_ends_by_its_deadline_however_many_there_are_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def slow(pid: int, attempt_id: str, uid: int | None, installation: str = "") -> bool:
        looked.append(pid)
        time.sleep(0.05)
        return False

    monkeypatch.setattr(procs, "has_marker", slow)
    monkeypatch.setattr(procs, "all_pids", lambda: iter(range(1 << 22, (1 << 22) + 2000)))
    assert not procs.kill_marked("0123456789ab-1", OWNER_UID, time.monotonic()), "nobody knows whether any is left"
    assert 0 < len(looked) < 1000
