"""The checkpoint directory of a run: whose it is, where it lies, and that what was saved stays."""

from __future__ import annotations

import errno
import os
import pwd
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from rota.adapters.backends import checkpoint_dir as made
from rota.adapters.backends import launcher, opener, pins, procs
from rota.adapters.backends.local import LocalBackend
from rota.adapters.backends.task import Account
from rota.adapters.checkpoints import CheckpointFiles
from rota.adapters.checkpoints_beside import side_by_side
from rota.adapters.datadir import open_data_dir
from rota.app.accounts import Accounts
from rota.app.checkpoint_dirs import CheckpointDir, CheckpointDirs
from rota.app.ports import LaunchOrder, StopOrder
from rota.core.run import Cause
from rota.main import _checkpoint_dirs
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, wait_for

RUN_ID = "0123456789ab"
OTHER_ID = "ba9876543210"
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run a job as another account")


@pytest.fixture
def root() -> Iterator[Path]:
    """A place that other accounts reach, which those of pytest are not."""
    with TemporaryDirectory() as path:
        os.chmod(path, 0o711)  # noqa: S103 - as it is where a server is root's
        yield Path(path)


def order_of(rig: LocalRig, root: Path, script: str, attempt: int = 1) -> LaunchOrder:
    saved = CheckpointDirs(str(root), "root").of(RUN_ID, "nobody")
    return rig.order(
        "succeed",
        attempt_id=f"{RUN_ID}-{attempt}",
        argv=("sh", "-c", script),
        env={"PATH": "/usr/bin:/bin", "SAVED": saved.path},
        account="nobody",
        workdir="/",
        checkpoint_dir=saved.path,
        checkpoint_parent=saved.parent,
    )


def test_each_account_has_a_directory_for_its_own_where_there_are_several() -> None:
    assert CheckpointDirs("/r").of(RUN_ID, None) == CheckpointDir(f"/r/{RUN_ID}", None)
    several = CheckpointDirs("/r", "root", frozenset({OTHER_ID}))
    assert several.of(RUN_ID, "ann") == CheckpointDir(f"/r/of-ann/{RUN_ID}", "/r/of-ann")
    assert several.of(RUN_ID, None) == several.of(RUN_ID, "root") == CheckpointDir(f"/r/of-root/{RUN_ID}", "/r/of-root")
    assert several.of(RUN_ID, "../a").path == f"/r/of-..%2Fa/{RUN_ID}"
    assert several.of(OTHER_ID, "ann") == CheckpointDir(f"/r/{OTHER_ID}", None), "an earlier version made it"


@ROOT_ONLY
def test_what_an_earlier_version_made_stays_where_it_is(tmp_path: Path) -> None:
    place, nobody = tmp_path / "checkpoints", Account("nobody")
    data_dir = open_data_dir(tmp_path / "data")
    old = place / RUN_ID
    old.mkdir(0o700, parents=True)
    os.chown(old, nobody.uid, nobody.gid)
    dirs = _checkpoint_dirs(data_dir, CheckpointFiles(place), Accounts(root=True, own="root"))
    data_dir.close()
    saved = dirs.of(RUN_ID, "nobody")
    assert saved == CheckpointDir(str(old), None)
    assert dirs.of(OTHER_ID, "nobody").parent == str(place / "of-nobody")
    held = made.make(saved.path, saved.parent, nobody)
    made.remove_if_empty(held, saved.path, saved.parent, nobody)
    os.close(held)
    assert old.exists(), "to remove it takes the lock of the directory above, which any account can hold"


@ROOT_ONLY
def test_a_start_lists_the_checkpoints_of_all_accounts_only_after_an_older_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can search that directory can hold its lock, and a start that lists it would wait."""
    place = tmp_path / "checkpoints"
    (place / RUN_ID).mkdir(parents=True)

    def found() -> frozenset[str]:
        data_dir = open_data_dir(tmp_path / "data")
        try:
            return side_by_side(data_dir, place)
        finally:
            data_dir.close()

    assert found() == {RUN_ID}, "the first start after an older server"
    listed = os.listdir

    def elsewhere(path: str | Path | int = ".") -> list[str]:
        assert path != place, "it was listed"
        return listed(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", elsewhere)
        assert found() == {RUN_ID}
        assert found() == {RUN_ID}
    (place / OTHER_ID).mkdir()
    (tmp_path / "data" / "lock").write_text("1 2026-01-01 00:00:00 +0000\n")  # all that an older server leaves there
    assert found() == {RUN_ID, OTHER_ID}
    (tmp_path / "data" / "checkpoints-beside").write_text(f"{RUN_ID}\n")
    assert found() == {RUN_ID, OTHER_ID}, "a file that is not whole counts for nothing"


def test_a_server_of_before_says_nothing_of_a_parent(
    tmp_path: Path, rig: LocalRig, backend: LocalBackend, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its zygote is of this version where that was installed while the server ran, and the zygote ended."""
    frame = launcher.frame

    def old_frame(head: str, body: dict[str, object]) -> bytes:
        return frame(head, {key: value for key, value in body.items() if key != "checkpoint_parent"})

    monkeypatch.setattr(launcher, "frame", old_frame)
    order = rig.order("succeed", argv=("sh", "-c", f"ls -d {tmp_path}/saved"), checkpoint_dir=f"{tmp_path}/saved")
    backend.launch(order)
    assert rig.end_of(reports, order).ok
    assert not (tmp_path / "saved").exists(), "nothing lies in it"


@ROOT_ONLY
def test_a_start_waits_for_the_directory_of_its_account_without_its_gpus_and_nobody_else_does(
    root: Path, rig: LocalRig, backend: LocalBackend, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make it takes the lock of the one above, which any account can hold."""
    order = order_of(rig, root, "true")
    backend.launch(order)
    assert rig.end_of(reports, order).ok
    gate = root / "gate"
    os.mkfifo(gate)
    slow = root / "slow.py"
    begins = "    with socket.socket(fileno=fd) as link:\n"
    source = Path(opener.__file__).read_text()
    assert begins in source
    slow.write_text(source.replace(begins, f"    open({str(gate)!r}).read()\n{begins}"))
    monkeypatch.setattr(opener, "__file__", str(slow))
    monkeypatch.setattr(backend._directories, "_within_s", 0.05)
    waits = [for_account(order_of(rig, root, "true", attempt), "daemon", root) for attempt in (2, 3)]
    backend.launch(waits[0])
    end = rig.end_of(reports, waits[0])
    assert (end.cause, end.shortage) == (Cause.LOST, True), "it is tried again, and its GPUs are free meanwhile"
    assert f"{root} did not answer" in end.message
    known = order_of(rig, root, "true", attempt=4)
    backend.launch(known)
    assert rig.end_of(reports, known).ok
    monkeypatch.setattr(backend._directories, "_within_s", 1000.0)
    backend.launch(waits[1])
    gate.write_text("")
    assert rig.end_of(reports, waits[1]).ok


@ROOT_ONLY
def test_a_stop_ends_what_opens_a_directory(
    root: Path, rig: LocalRig, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = root / "slow.py"
    slow.write_text("import time\ntime.sleep(1000)\n")
    monkeypatch.setattr(opener, "__file__", str(slow))
    before = set(os.listdir("/proc/self/fd"))
    backend = rig.backend()
    backend.open(reports)
    order = order_of(rig, root, "true")
    backend.launch(order)
    wait_for(lambda: backend._directories._opening, "a process that opens it")
    (opening,) = backend._directories._opening.values()
    backend.close()
    assert opening.process.returncode == -signal.SIGKILL
    assert set(os.listdir("/proc/self/fd")) <= before


@ROOT_ONLY
def test_a_start_for_which_no_more_directories_are_opened_says_so(
    root: Path, rig: LocalRig, backend: LocalBackend, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pins, "_most", lambda: 0)
        order = for_account(order_of(rig, root, "true"), "daemon", root)
        backend.launch(order)
        end = rig.end_of(reports, order)
    assert (end.cause, end.shortage) == (Cause.LOST, True)
    assert "0 checkpoint directories are being opened already" in end.message


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_opener_that_cannot_be_followed_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def fail(pid: int) -> int:
        begun.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(1000)\n")
    monkeypatch.setattr(opener, "__file__", str(slow))
    monkeypatch.setattr(os, "pidfd_open", fail)
    with pytest.raises(OSError, match="Too many open files"):
        pins.Pins().ask("1", pins.Directory(str(tmp_path), False), lambda answered: None, NobodyWaits())
    wait_for(lambda: procs.start_time(begun[0]) is None, "its end")


class NobodyWaits:
    def later(self, delay_s: float, act: Callable[[], None]) -> None: ...
    def follow(self, pidfd: int, act: Callable[[], None]) -> None: ...


def for_account(order: LaunchOrder, account: str, root: Path) -> LaunchOrder:
    saved = CheckpointDirs(str(root), "root").of(RUN_ID, account)
    return replace(order, account=account, checkpoint_dir=saved.path, checkpoint_parent=saved.parent)


@ROOT_ONLY
def test_the_directory_of_an_account_stays_open_and_is_removed_through_what_is_open(
    root: Path, rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    order = order_of(rig, root, "sleep 1000")
    backend.launch(order)
    rig.start_of(reports, order)  # before, its supervisor goes to the directory by its path
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in backend._directories._open.values()]
    assert links == [str(root / "of-nobody")]
    (root / "of-nobody").rename(root / "moved")
    backend.stop(order.attempt_id, StopOrder("cancelled", 9, 0.0))
    rig.end_of(reports, order)
    assert os.listdir(root / "moved") == []


@ROOT_ONLY
def test_a_job_writes_its_own_directory_and_can_only_search_the_one_above(
    root: Path, rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    script = 'echo one > "$SAVED/state"; cd "$SAVED"; ls .. || touch ../more || exit 7'
    order = order_of(rig, root, script)
    backend.launch(order)
    assert rig.end_of(reports, order).code == 7
    parent = root / "of-nobody"
    facts, own = parent.stat(), (parent / RUN_ID).stat()
    assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (0, 0o710)
    assert (own.st_uid, stat.S_IMODE(own.st_mode)) == (pwd.getpwnam("nobody").pw_uid, 0o700)
    again = order_of(rig, root, 'grep one "$SAVED/state" && rm "$SAVED/state"', attempt=2)
    backend.launch(again)
    assert rig.end_of(reports, again).ok
    assert os.listdir(parent) == [], "nothing lies in it any more"


@ROOT_ONLY
@pytest.mark.parametrize("acl", [made.ACL, "system.no_such_list"])
def test_no_other_account_can_search_the_directory_of_an_account(
    root: Path, acl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cannot search it cannot take its lock: a rename finds the directory before it locks it."""
    monkeypatch.setattr(made, "ACL", acl)
    nobody = Account("nobody")
    saved = CheckpointDirs(str(root), "root").of(RUN_ID, "nobody")
    os.close(made.make(saved.path, saved.parent, nobody))
    assert saved.parent is not None
    for uid, gid, reaches in ((nobody.uid, nobody.gid, True), (54321, 54321, False)):
        argv = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "stat", saved.path]
        done = subprocess.run(argv, capture_output=True, check=False)
        assert (done.returncode == 0) is reaches, done.stderr


@ROOT_ONLY
def test_a_directory_that_was_not_given_away_yet_is(
    root: Path, rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    """Whoever made it was killed between the two."""
    (root / "of-nobody").mkdir(0o700)
    (root / "of-nobody" / RUN_ID).mkdir(0o700)
    order = order_of(rig, root, 'touch "$SAVED/state"')
    backend.launch(order)
    assert rig.end_of(reports, order).ok


def test_those_of_accounts_are_measured_and_removed_as_the_others_are(tmp_path: Path) -> None:
    for name, size in ((RUN_ID, 10_000), (f"of-ann/{OTHER_ID}", 20_000)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "state").write_bytes(bytes(size))
    (tmp_path / "of-ann" / "notes").mkdir()
    files = CheckpointFiles(tmp_path)
    sizes = dict(files.sizes())
    assert sizes.keys() == {RUN_ID, OTHER_ID}
    assert (sizes[OTHER_ID] or 0) >= 20_000
    assert files.purge(1.0, lambda run_id: True) == 0, "they are young"
    os.utime(tmp_path / "of-ann" / OTHER_ID, (1.0, 1.0))
    assert files.purge(2.0, lambda run_id: run_id == OTHER_ID) == 1
    assert sorted(os.listdir(tmp_path)) == [RUN_ID, "of-ann"]
    assert os.listdir(tmp_path / "of-ann") == ["notes"]
