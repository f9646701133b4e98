"""`rota skill` and the texts for agents in this repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from rota.cli.main import COMMANDS
from rota.cli.skill import text
from tests.app.house import SOURCES
from tests.doors.server import PROGRAM

ROOT = Path(__file__).parents[2]


def skill(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": SOURCES}
    return subprocess.run([*PROGRAM, "skill", *words], env=env, capture_output=True, text=True, timeout=60, check=False)


def test_it_is_printed_and_installed(tmp_path: Path) -> None:
    assert skill(tmp_path).stdout == text()
    said = skill(tmp_path, "--install", str(tmp_path / "skills")).stdout
    target = tmp_path / "skills" / "rota" / "SKILL.md"
    assert said == f"wrote {target}\n"
    assert target.read_text() == text()
    (tmp_path / "file").write_text("")
    assert skill(tmp_path, "--install", str(tmp_path / "file" / "below")).returncode == 75


def test_the_copy_in_the_repository_is_the_same() -> None:
    assert (ROOT / "skills" / "rota" / "SKILL.md").read_text() == text()


def test_its_front_matter_is_what_agents_read() -> None:
    match = re.match(r"---\nname: (\S+)\ndescription: (.+)\n---\n", text())
    assert match is not None
    assert match[1] == "rota"
    assert 40 < len(match[2]) < 1024


def test_it_names_only_commands_that_there_are() -> None:
    for page in (text(), (ROOT / "AGENTS.md").read_text()):
        code = re.findall(r"`([^`\n]+)`", page) + re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
        named = {word for part in code for word in re.findall(r"\brota ([a-z]+)\b", part)}
        assert named
        assert named <= set(COMMANDS), named - set(COMMANDS)
