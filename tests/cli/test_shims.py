"""`rota shims`: small files on the PATH, and no real Slurm hidden by accident."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.app.house import SOURCES
from tests.doors.server import PROGRAM

NAMES = ["srun", "sbatch", "squeue", "scancel", "sinfo", "sacct"]


class User:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.bin = home / ".local" / "bin"
        tools = home / "tools"  # and not /usr/bin, where this machine may have a Slurm
        tools.mkdir()
        (tools / "printf").symlink_to("/usr/bin/printf")
        self.env = {"PATH": f"{self.bin}:{tools}", "HOME": str(home), "PYTHONPATH": SOURCES}

    def __call__(self, *words: str, code: int = 0) -> str:
        argv = [*PROGRAM, "shims", *words]
        ended = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == code, ended.stderr
        return ended.stdout + ended.stderr


@pytest.fixture
def shims(tmp_path: Path) -> User:
    return User(tmp_path)


def test_install_use_remove(shims: User, tmp_path: Path) -> None:
    assert "not installed" in shims("list")
    assert str(shims.bin) in shims("install")
    assert sorted(path.name for path in shims.bin.iterdir()) == sorted(NAMES)
    (tmp_path / "rota").mkdir()  # somebody's own directory of that name must not be taken for ours
    (tmp_path / "rota" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    for name in NAMES:
        ended = subprocess.run(
            [name, "--help"], env=shims.env, cwd=tmp_path, capture_output=True, timeout=60, check=True
        )
        assert ended.stdout.startswith(f"usage: {name}".encode())
    assert all(line.split()[1] == "installed" for line in shims("list").splitlines())
    shims("install")  # again is fine
    (shims.bin / "mine").write_text("")
    assert "removed 6" in shims("remove")
    assert [path.name for path in shims.bin.iterdir()] == ["mine"]
    assert "there are none" in shims("remove")


def test_words_reach_the_tool_as_they_are(shims: User) -> None:
    shims("install")
    ended = subprocess.run(
        ["srun", "printf", "%s|", "two words", "", "*"],
        env={**shims.env, "SLURM_JOB_ID": "1"},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout == b"two words||*|"


def test_it_says_when_the_directory_is_not_on_the_path(shims: User, tmp_path: Path) -> None:
    other = tmp_path / "other place"
    assert f"export PATH='{other}':$PATH" in shims("install", "--dir", str(other))


def test_a_real_slurm_is_not_hidden(shims: User, tmp_path: Path) -> None:
    real = tmp_path / "slurm"
    real.mkdir()
    (real / "squeue").write_text("#!/bin/sh\necho real\n")
    (real / "squeue").chmod(0o755)
    shims.env["PATH"] += f":{real}"
    said = shims("install", code=75)
    assert f"{real}/squeue is a real Slurm's" in said
    assert not shims.bin.exists(), "nothing was written"
    shims("install", "--force")
    assert (shims.bin / "squeue").exists()
    shims("remove")
    assert (real / "squeue").exists()


def test_a_file_that_is_not_ours_stays(shims: User) -> None:
    shims.bin.mkdir(parents=True)
    (shims.bin / "sinfo").write_text("my own notes")
    assert "is not Rota's" in shims("install", code=75)
    assert [path.name for path in shims.bin.iterdir()] == ["sinfo"]
    shims("remove")
    assert (shims.bin / "sinfo").read_text() == "my own notes"
    shims("install", "--force")
    assert "my own notes" not in (shims.bin / "sinfo").read_text()


def test_a_place_that_cannot_be_written(shims: User, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot write to" in shims("install", "--dir", str(tmp_path / "file" / "below"), code=75)
