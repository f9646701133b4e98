"""Claims are prepared beside the attempts that they become, so that nothing is renamed between two directories."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from rota.adapters.backends import claims, records
from rota.adapters.backends.local import LocalBackend
from rota.adapters.backends.purge import purge
from rota.core.run import Cause, Exit
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig

ONE, TWO = "0123456789ab-1", "0123456789ab-2"
NOBODY = 99_999_999  # beyond the largest pid that Linux gives
NEVER = Exit(Cause.NEVER_STARTED, message="")


@pytest.fixture
def root(tmp_path: Path) -> str:
    for name in ("attempts", "live"):
        (tmp_path / name).mkdir()
    return str(tmp_path)


@pytest.fixture
def renames() -> Iterator[list[tuple[str, str]]]:
    """From which directory to which."""
    seen = []
    real = os.rename

    def rename(source: str, target: str) -> None:
        seen.append((os.path.dirname(source), os.path.dirname(target)))
        real(source, target)

    with patch.object(os, "rename", rename):
        yield seen


def names(root: str) -> dict[str, list[str]]:
    return {place: sorted(os.listdir(f"{root}/{place}")) for place in ("attempts", "live")}


def test_a_claim_renames_within_one_directory_each(root: str, renames: list[tuple[str, str]]) -> None:
    prepared = records.prepare(root, {})
    assert records.claim(root, prepared, ONE)
    os.close(prepared.lock)
    assert renames == [(f"{root}/attempts",) * 2, (f"{root}/live",) * 2]
    assert names(root) == {"attempts": [ONE], "live": [ONE]}
    assert os.path.samefile(f"{root}/live/{ONE}", f"{root}/attempts/{ONE}/lock")


def test_so_do_a_veto_and_the_removal_of_old_attempts(root: str, renames: list[tuple[str, str]]) -> None:
    assert claims.veto(root, ONE, NEVER)
    os.unlink(f"{root}/live/{ONE}")
    assert purge(root, os.stat(f"{root}/attempts/{ONE}/exit").st_mtime + 1) == 1
    assert names(root) == {"attempts": [], "live": []}
    assert len(renames) >= 4 and all(source == target for source, target in renames)


def test_of_two_claims_one_succeeds_and_the_other_is_good_for_another_attempt(root: str) -> None:
    first, second = records.prepare(root, {}), records.prepare(root, {})
    assert records.claim(root, first, ONE)
    assert not records.claim(root, second, ONE)
    assert records.locked(root, ONE)
    assert records.claim(root, second, TWO)
    assert names(root) == {"attempts": [ONE, TWO], "live": [ONE, TWO]}
    os.close(first.lock)
    os.close(second.lock)


def test_a_claim_that_is_not_needed_leaves_nothing(root: str) -> None:
    assert claims.veto(root, ONE, NEVER)
    assert not claims.veto(root, ONE, NEVER)
    assert names(root) == {"attempts": [ONE], "live": [ONE]}


def test_a_claim_for_which_there_is_no_room_leaves_nothing(root: str) -> None:
    with patch.object(records, "make_spare", side_effect=OSError(28, "full")), pytest.raises(OSError, match="full"):
        records.prepare(root, {})
    assert names(root) == {"attempts": [], "live": []}


def test_prepared_claims_are_no_attempts(root: str) -> None:
    prepared = records.prepare(root, {})
    os.close(prepared.lock)
    assert LocalBackend(Path(root)).strays() == []
    assert purge(root, 1e12) == 0
    assert os.path.exists(prepared.path) and os.path.exists(prepared.live)


def test_what_dead_makers_left_is_removed_and_what_lives_is_not(tmp_path: Path) -> None:
    rig = LocalRig(tmp_path, cgroups=False)
    root = tmp_path / "backend"
    maker = subprocess.Popen(["sleep", "1000"])
    kept = f".{maker.pid}.0123456789ab"
    left = f".{NOBODY}.0123456789ab"
    ours = f".{os.getpid()}.0123456789ab"  # of an earlier server, whose pid we were given
    try:
        for place, folders in (
            ("attempts", (left, ours, kept, ONE, ".mine")),
            ("tmp", (left[1:], ours[1:], kept[1:], "odd")),
        ):
            for name in folders:
                (root / place / name).mkdir(parents=True)
                (root / place / name / "lock").touch()
        (root / "live").mkdir()
        # of the last the directory became an attempt
        for name in (left, ours, kept, ONE, f".{NOBODY}.ba9876543210"):
            (root / "live" / name).touch()
        backend = rig.backend()
        backend.open(Reports())
        backend.close()
    finally:
        maker.kill()
        maker.wait()
    made = {left, ours, kept, left[1:], ours[1:], kept[1:], ONE, ".mine", "odd", f".{NOBODY}.ba9876543210"}
    found = {place: made & set(os.listdir(root / place)) for place in ("attempts", "live", "tmp")}
    assert found == {"attempts": {kept, ONE, ".mine"}, "live": {kept, ONE}, "tmp": {kept[1:]}}


def test_a_claimant_that_dies_between_the_two_renames_leaves_an_attempt_that_is_lost(tmp_path: Path) -> None:
    rig = LocalRig(tmp_path, cgroups=False)
    backend, reports = rig.backend(), Reports()
    backend.open(reports)
    root = str(tmp_path / "backend")
    try:
        prepared = records.prepare(root, {})
        os.rename(prepared.path, records.attempt_dir(root, ONE))
        os.close(prepared.lock)
        end = backend.observe(ONE)
        assert isinstance(end, Exit) and end.cause is Cause.LOST
    finally:
        backend.close()
