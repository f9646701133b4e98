"""Device files that are not the task's answer EPERM. /dev/zero stands in for somebody else's GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pytest

from rota.adapters.backends import confine, heard, limits, records
from rota.adapters.backends.local import LocalBackend
from rota.adapters.backends.shim import Shim
from rota.app.ports import StopOrder, Task
from rota.core.run import Cause
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, patched_launcher, wait_for

ZERO = (1, 5)
ORDER = {"log_cap_bytes": 1 << 20, "grace_s": 0.0}


def hierarchies() -> confine.Hierarchies:
    return confine.probe(f"rota-test-{os.getpid()}")


@pytest.fixture
def groups() -> confine.Hierarchies:
    found = hierarchies()
    if not found.unified:
        pytest.skip("no cgroup v2 that this user may use (needs root, or a delegated group)")
    return found


def test_a_confined_task_cannot_open_what_is_denied(groups: confine.Hierarchies, tmp_path: Path) -> None:
    confine.try_remove(groups.unified)
    rig, reports = LocalRig(tmp_path, deny=[ZERO]), Reports()
    backend = rig.backend()
    backend.open(reports)
    try:
        argv = ("sh", "-c", "head -c 1 /dev/null && head -c 4 /dev/random | wc -c; head -c 1 /dev/zero")
        free = rig.order("succeed", argv=argv)
        bound = rig.order("succeed", argv=argv, confine=True, tasks=(Task("a", (0,)), Task("b", (1,))))
        for order in (free, bound):
            backend.launch(order)
        assert rig.end_of(reports, free).ok
        assert rig.end_of(reports, bound).code == 1
        said = backend.read_log(bound.attempt_id, 0, 1000).content
        assert b"Operation not permitted" in said and b"/dev/zero" in said
        assert b"4\n" in said, "other devices stay open"
        assert not rig.path(bound.attempt_id, "shim.log").exists()
        again = rig.order("succeed", argv=argv)
        backend.launch(again)
        assert rig.end_of(reports, again).ok, "the filter must not stay with the worker"
    finally:
        backend.close()


def test_nobody_else_lists_the_groups_of_runs(groups: confine.Hierarchies, tmp_path: Path) -> None:
    rig, reports = LocalRig(tmp_path), Reports()
    backend = rig.backend()
    backend.open(reports)
    try:
        order = rig.order("last for ever", argv=("sh", "-c", "cat /proc/self/cgroup; sleep 1000"))
        backend.launch(order)
        wait_for(lambda: b"0::" in backend.read_log(order.attempt_id, 0, 4000).content, "its groups")
        said = backend.read_log(order.attempt_id, 0, 4000).content.decode()
        mount = groups.unified.rpartition("/")[0]
        (path,) = [Path(mount) / line[4:] for line in said.splitlines() if line.startswith("0::/")]
        ours = [each for each in (path, *path.parents) if "/rota-" in str(each)]
        assert ours
        assert {oct(each.stat().st_mode & 0o777) for each in ours} == {oct(0o711)}
    finally:
        backend.stop(order.attempt_id, StopOrder(cause="cancelled", signal=9, grace_s=0.0))
        rig.end_of(reports, order)
        backend.close()


def test_v1_devices_are_the_fallback(groups: confine.Hierarchies) -> None:
    if not groups.devices:
        pytest.skip("no v1 devices hierarchy here")
    group = f"{groups.devices}/test"
    confine.create(group)
    try:
        confine.deny_devices_v1(group, [ZERO])
        assert _open_zero_inside(group) == "EPERM"
    finally:
        confine.remove(group)
        confine.try_remove(groups.devices)
        confine.try_remove(groups.unified)


def test_the_filter_program_denies_just_its_list(groups: confine.Hierarchies) -> None:
    group = f"{groups.unified}/filter"
    for denied, expected in ([], "open"), ([(195, 0), ZERO, (195, 1)], "EPERM"), ([(1, 3), (195, 5)], "open"):
        confine.create(group)
        confine.deny_devices(group, denied)
        assert _open_zero_inside(group) == expected, denied
        confine.remove(group)
    confine.try_remove(groups.unified)
    confine.try_remove(groups.devices)


def _open_zero_inside(group: str) -> str:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            confine.join(group)
            os.open("/dev/zero", os.O_RDONLY)
            code = 0
        except PermissionError:
            code = 2
        finally:
            os._exit(code)
    return {0: "open", 2: "EPERM"}.get(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "error")


def test_a_group_without_a_device_filter_is_counted_among_a_runs_own(tmp_path: Path) -> None:
    """Else each end waits for a look at all processes."""
    refused = (
        "from rota.adapters.backends import confine, procs\n"
        "def refuse(*given): raise OSError(1, 'Operation not permitted')\n"
        "confine.deny_devices = confine.deny_devices_v1 = confine.members = procs.marked = refuse\n"
    )
    rig, reports = LocalRig(tmp_path, deny=[ZERO], zygote_prefix=patched_launcher(refused)), Reports()
    backend: LocalBackend = rig.backend()
    backend.open(reports)
    try:
        order = rig.order("succeed", confine=True)
        backend.launch(order)
        assert rig.end_of(reports, order).ok
        notes = rig.path(order.attempt_id, "shim.log").read_text()
        assert "runs unconfined" in notes
        assert "what has left its tree" not in notes, "there was no look"
    finally:
        backend.close()


def test_a_group_counts_as_removed_only_once_it_is_gone(
    groups: confine.Hierarchies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever somebody else removes below it meanwhile."""
    group = f"{groups.unified}/test"
    for name in ("a", "b"):
        confine.create(f"{group}/{name}")
    real = os.rmdir

    def rmdir(path: str) -> None:
        if path == f"{group}/a":
            real(path)  # by somebody else, just before
        real(path)

    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            confine.write(f"{group}/b/cgroup.procs", str(process.pid))
            with monkeypatch.context() as patched:
                patched.setattr("rota.adapters.backends.confine.os.rmdir", rmdir)
                patched.setattr(confine, "kill", lambda group: None)
                assert not confine.remove(group, 0.01)
            assert confine.members(group) == [process.pid]
        finally:
            process.kill()
    assert confine.remove(group)
    assert not os.path.exists(group)
    confine.try_remove(groups.unified)


def test_without_rights_it_runs_unconfined_and_says_so(tmp_path: Path) -> None:
    rig, reports = LocalRig(tmp_path, cgroups=False, deny=[ZERO]), Reports()
    backend: LocalBackend = rig.backend()
    backend.open(reports)
    try:
        order = rig.order("succeed", confine=True)
        backend.launch(order)
        assert rig.end_of(reports, order).ok
        assert "runs unconfined" in rig.path(order.attempt_id, "shim.log").read_text()
    finally:
        backend.close()


def test_a_mount_point_with_a_carriage_return_hides_no_other_mount(groups: confine.Hierarchies, tmp_path: Path) -> None:
    """The kernel escapes a newline there, and nothing else that Python takes for the end of a line."""
    confine.try_remove(groups.unified)
    odd = tmp_path / "a\rb - cgroup2"
    odd.mkdir()
    look = "from rota.adapters.backends import confine; print(confine._mounts())"
    script = 'mount -t tmpfs none "$1" && exec "$2" -c "$3"'
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", str(odd), sys.executable, look]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    if "Operation not permitted" in done.stderr or "Permission denied" in done.stderr:
        pytest.skip("this user may not mount (needs root)")
    assert done.stdout.strip() == str(confine._mounts()), done.stderr


def held_by(pid: int) -> list[str]:
    return [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]


def test_a_supervisor_has_open_what_a_kill_of_its_group_needs(groups: confine.Hierarchies, tmp_path: Path) -> None:
    confine.try_remove(groups.unified)
    rig, reports = LocalRig(tmp_path), Reports()
    order = rig.order("ignore TERM")
    first, second = rig.backend(), rig.backend()
    first.open(reports)
    first.launch(order)
    rig.start_of(reports, order)
    record = records.read(str(rig.path(order.attempt_id, "pid")))
    assert record is not None
    aside = f"{os.path.dirname(record['cgroup'])}/aside"
    needed = {f"{aside}/cgroup.procs", f"{record['cgroup']}/cgroup.kill", f"{record['cgroup']}/shim/cgroup.procs"}
    assert needed <= set(held_by(record["pid"]))
    inode = os.stat(aside).st_ino
    first.close()
    second.open(reports)
    try:
        another = rig.order("succeed")
        second.launch(another)
        rig.end_of(reports, another)
        assert os.stat(aside).st_ino == inode, "it stays while a supervisor has it open"
        second.stop(order.attempt_id, StopOrder("cancelled", 9, 0.0))
        assert rig.end_of(reports, order).cause is Cause.CANCELLED
        assert not rig.path(order.attempt_id, "shim.log").exists()
    finally:
        second.close()
    wait_for(lambda: not os.path.exists(aside), "the last one takes it along")


def test_a_group_is_killed_also_when_the_place_to_stand_aside_was_removed(
    groups: confine.Hierarchies, tmp_path: Path
) -> None:
    confine.try_remove(groups.unified)
    rig, reports = LocalRig(tmp_path), Reports()
    backend = rig.backend()
    backend.open(reports)
    try:
        order = rig.order("ignore TERM")
        backend.launch(order)
        rig.start_of(reports, order)
        record = records.read(str(rig.path(order.attempt_id, "pid")))
        assert record is not None
        os.rmdir(f"{os.path.dirname(record['cgroup'])}/aside")
        backend.stop(order.attempt_id, StopOrder("cancelled", 9, 0.0))
        assert rig.end_of(reports, order).cause is Cause.CANCELLED
    finally:
        backend.close()


def test_what_can_be_found_is_killed_before_anything_is_made_anew(shim: Shim) -> None:
    done: list[str] = []

    class Groups:
        blow = SimpleNamespace(strike=Mock(side_effect=[OSError(19, "removed"), None]))

        def arm(self) -> None:
            done.append("made anew")

    def kill_all() -> list[int]:
        done.append("killed one by one")
        return []

    house: Any = shim.house
    house.group, house.groups = "group", Groups()
    with patch.object(heard, "kill_all", kill_all), patch.object(shim, "_kill_leaders", lambda: done.append("tasks")):
        shim._kill_all()
    assert done == ["tasks", "killed one by one", "made anew"]
    assert Groups.blow.strike.call_count == 2


def test_what_cannot_be_made_anew_is_tried_again_at_the_next_kill(shim: Shim) -> None:
    groups = limits.WorkerGroups(confine.Hierarchies(), "")
    groups.unified = "group"
    first, second = Mock(), Mock()
    first.strike.side_effect = OSError(19, "removed")
    groups.blow = first
    house: Any = shim.house
    house.group, house.groups = "group", groups
    with (
        patch.object(confine, "Blow", Mock(side_effect=[OSError(12, "no memory"), second])),
        patch.object(heard, "kill_all", list),
        patch.object(shim, "_kill_leaders", lambda: None),
    ):
        shim._kill_all()
        assert (first.close.call_count, second.strike.call_count) == (1, 0)
        shim._kill_all()
    assert (first.close.call_count, second.strike.call_count) == (1, 1)
