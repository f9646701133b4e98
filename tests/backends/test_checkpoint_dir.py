"""The checkpoint directory of a run: whose it is, where it lies, and that what was saved stays."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from rota.adapters.backends import checkpoint_dir as made
from rota.adapters.backends.local import LocalBackend
from rota.adapters.backends.task import Account
from rota.adapters.checkpoints import CheckpointFiles
from rota.app.checkpoint_dir import CheckpointDir, checkpoint_dir
from rota.app.ports import LaunchOrder
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig

RUN_ID = "0123456789ab"
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run a job as another account")


@pytest.fixture
def root() -> Iterator[Path]:
    """A place that other accounts reach, which those of pytest are not."""
    with TemporaryDirectory() as path:
        os.chmod(path, 0o711)  # noqa: S103 - as it is where a server is root's
        yield Path(path)


def order_of(rig: LocalRig, root: Path, script: str, attempt: int = 1) -> LaunchOrder:
    saved = checkpoint_dir(str(root), RUN_ID, "nobody")
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


def test_only_another_accounts_lies_in_a_directory_of_the_servers_own(tmp_path: Path) -> None:
    root = str(tmp_path)
    for account in (None, "root"):
        assert checkpoint_dir(root, RUN_ID, account) == CheckpointDir(f"{root}/{RUN_ID}", None)
    inside = CheckpointDir(f"{root}/{RUN_ID}/data", f"{root}/{RUN_ID}")
    assert checkpoint_dir(root, RUN_ID, "nobody") == inside
    made.make(*inside, None)
    assert checkpoint_dir(root, RUN_ID, "nobody") == inside, "nor does it move once it is there"
    made.make(*inside, None)
    made.remove_if_empty(*inside, None)
    assert os.listdir(root) == []


@ROOT_ONLY
def test_what_an_earlier_version_made_stays_where_it_is(tmp_path: Path) -> None:
    old, nobody = tmp_path / RUN_ID, Account("nobody")
    old.mkdir(0o700)
    os.chown(old, nobody.uid, nobody.gid)
    saved = checkpoint_dir(str(tmp_path), RUN_ID, "nobody")
    assert saved == CheckpointDir(str(old), None)
    made.make(*saved, nobody)
    made.remove_if_empty(*saved, nobody)
    assert old.exists(), "its account may hold its lock: to remove it would hold that of everybody's"


@ROOT_ONLY
def test_a_job_writes_its_own_directory_and_cannot_list_the_one_around_it(
    root: Path, rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    script = 'echo one > "$SAVED/state"; cd "$SAVED"; ls .. || touch ../more || exit 7'
    order = order_of(rig, root, script)
    backend.launch(order)
    assert rig.end_of(reports, order).code == 7
    parent = root / RUN_ID
    facts, inner = parent.stat(), (parent / "data").stat()
    assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (0, 0o711)
    assert (inner.st_uid, stat.S_IMODE(inner.st_mode)) == (pwd.getpwnam("nobody").pw_uid, 0o700)
    again = order_of(rig, root, 'grep one "$SAVED/state" && rm "$SAVED/state"', attempt=2)
    backend.launch(again)
    assert rig.end_of(reports, again).ok
    assert not parent.exists(), "nothing lies in it any more"


@ROOT_ONLY
def test_a_directory_that_was_not_given_away_yet_is(
    root: Path, rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    """Whoever made it was killed between the two."""
    (root / RUN_ID).mkdir()
    (root / RUN_ID / "data").mkdir(0o700)
    order = order_of(rig, root, 'touch "$SAVED/state"')
    backend.launch(order)
    assert rig.end_of(reports, order).ok


def test_what_was_added_to_of_late_is_not_old(tmp_path: Path) -> None:
    made.make(str(tmp_path / RUN_ID / "data"), str(tmp_path / RUN_ID), None)
    files = CheckpointFiles(tmp_path)
    os.utime(tmp_path / RUN_ID, (1.0, 1.0))
    assert files.purge(2.0, lambda run_id: True) == 0
    os.utime(tmp_path / RUN_ID / "data", (1.0, 1.0))
    assert files.purge(2.0, lambda run_id: True) == 1
    assert os.listdir(tmp_path) == []
