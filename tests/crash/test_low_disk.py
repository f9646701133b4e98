"""A disk with less free than the floor: new work is refused in words, ends are recorded, and it heals by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crash.kit import ROOT

MOUNT = 'mount -t tmpfs -o "$4" tmpfs "$1" && exec "$2" -m "tests.crash.$5" "$1" "$3"'
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")


def on_a_disk(tmp_path: Path, options: str, program: str) -> Any:
    """Run a program of this directory with a small disk of its own; return the facts that it prints."""
    disk, outside = tmp_path / "disk", tmp_path / "outside"
    disk.mkdir()
    outside.mkdir()
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", MOUNT, "sh", str(disk), sys.executable, str(outside), options, program],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@ROOT_ONLY
def test_below_the_floor_only_ends_are_written(tmp_path: Path) -> None:
    facts = on_a_disk(tmp_path, "size=64m", "low_disk")
    assert "below the floor of 16.0 MiB" in facts["ready"]
    assert len(facts["refused"]) == 6
    for path, (status, detail) in facts["refused"].items():
        assert status == 507 and "below the floor of 16.0 MiB" in detail, (path, status, detail)
    assert "below the floor" in facts["health"] and "below the floor" in facts["doctor"]
    assert facts["queue paused"] is True
    assert facts["why"]["code"] == "disk", facts["why"]
    assert facts["ended"] == ["failed", "canceled"], "ends are recorded while there is no room for anything else"
    assert (facts["not started"], facts["still low"]) == ("queued", 503), "and nothing took the GPUs that came free"
    assert facts["started"] == facts["taken in"] != "failed", facts
    assert facts["said"].count("below the floor") == 1, "said once, when it began"


@ROOT_ONLY
def test_ends_are_recorded_on_a_disk_that_is_full_to_its_last_byte(tmp_path: Path) -> None:
    facts = on_a_disk(tmp_path, "size=64m", "last_byte")
    assert facts["left"] < 4096, "the test means nothing otherwise"
    assert facts["ended"] == ["canceled", "failed"] and facts["answer"] == 200
    assert facts["ballast"], "the ledger has room within itself"


@ROOT_ONLY
def test_a_job_that_takes_every_inode_keeps_no_end_from_being_recorded(tmp_path: Path) -> None:
    facts = on_a_disk(tmp_path, "size=128m,nr_inodes=4000", "few_inodes")
    seen = facts["floor"]
    assert seen["left at the end"] < 10, "the test means nothing otherwise"
    said = "inodes free (each file takes one), below the floor of 200"
    assert said in seen["ready"] and said in seen["health"] and said in seen["doctor"]
    assert {(status, said in detail) for status, detail in seen["refused"].values()} == {(507, True)}
    assert seen["ended"] == ["failed", "canceled", "canceled"] and seen["held"] == 0
    assert seen["after"] == "completed"
    late = facts["no floor"]
    assert late["before"] in ("queued", "launching") and late["taker"] == "canceled", late
    assert late["after"] == "completed", "it waited for room, and used up no retry"
    assert facts["restart"] == {"ready": 503, "ended": "canceled"}


@ROOT_ONLY
def test_what_jobs_print_leaves_the_ledger_its_room(tmp_path: Path) -> None:
    facts = on_a_disk(tmp_path, "size=64m", "loud_job")
    assert 6 < facts["free MiB"] < 16, "no log grows below half of the floor"
    assert (facts["stopped"], facts["ended"]) == ("canceled", ["exit code 3", "exit code 6"])
    assert "bytes of output were lost: the disk is nearly full" in facts["log"]


@ROOT_ONLY
def test_a_job_that_takes_every_block_that_comes_free_keeps_no_cancel_from_being_stored(tmp_path: Path) -> None:
    """What the server gives back to the file system is the job's: the ledger has room that never goes back."""
    facts = on_a_disk(tmp_path, "size=96m", "greedy_job")
    assert facts["left"] < 4096, "the test means nothing otherwise"
    assert facts["ended"] == "failed"
    assert (facts["answers"], facts["canceled"]) == ([200], ["canceled"])
    assert (facts["answer of its own"], facts["greedy"], facts["held"]) == (200, "canceled", 0)


@ROOT_ONLY
def test_a_long_read_on_a_full_disk_stops_writing_no_longer_than_it_lasts(tmp_path: Path) -> None:
    """While it lasts the log cannot begin anew, and comes to the end of its room."""
    facts = on_a_disk(tmp_path, "size=16m", "long_reader")
    assert facts["left"] == 0 and 0 < facts["stored"] < 1000, "the test means nothing otherwise"
    assert facts["later"] == 50
