"""docs/STATES.md shows the transition table as it is, and every promise it names a test for has that test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_diagram_is_the_table() -> None:
    check = [sys.executable, str(ROOT / "tools" / "states_doc.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_check_can_fail(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "tools" / "states_doc.py").write_text((ROOT / "tools" / "states_doc.py").read_text())
    text = (ROOT / "docs" / "STATES.md").read_text()
    (tmp_path / "docs" / "STATES.md").write_text(text.replace("held --> queued", "held --> running"))
    check = [sys.executable, str(tmp_path / "tools" / "states_doc.py"), "--check"]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 1


def test_the_tests_it_names_are_there() -> None:
    named = set(re.findall(r"`(tests/[a-z]+)`", (ROOT / "docs" / "STATES.md").read_text()))
    assert len(named) >= 5
    assert [name for name in sorted(named) if not list((ROOT / name).glob("test_*.py"))] == []
