"""A disk with less free than the floor: new work is refused in words, ends are recorded, and it heals by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.kit import ROOT

MOUNT = 'mount -t tmpfs -o size=64m tmpfs "$1" && exec "$2" -m tests.crash.low_disk "$1" "$3"'


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_below_the_floor_only_ends_are_written(tmp_path: Path) -> None:
    disk, outside = tmp_path / "disk", tmp_path / "outside"
    disk.mkdir()
    outside.mkdir()
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", MOUNT, "sh", str(disk), sys.executable, str(outside)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
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
