"""A disk that is really full: refusals in words, running work unharmed, and all well when there is room again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.kit import ROOT

MOUNT = 'mount -t tmpfs -o size=6m tmpfs "$1" && exec "$2" -m tests.crash.full_disk "$1" "$3"'


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk(tmp_path: Path) -> None:
    disk, marks = tmp_path / "disk", tmp_path / "marks"
    disk.mkdir()
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", MOUNT, "sh", str(disk), sys.executable, str(marks)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert "not stored" in facts["refused"] and facts["refused again"], facts
    assert facts["read while full"]
    assert (facts["after"], facts["steady"]) == ("succeeded", "succeeded"), facts
    assert facts["steady said"] == "hello\nstill here\n"
    assert facts["lost"] == [] and facts["check"] == []
    assert facts["accepted"] > 50, "it was full from the start: the test means nothing"
