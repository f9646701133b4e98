"""`rota service`: the unit files, in a private root."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from rota.cli.units import fill, quoted
from tests.app.house import SOURCES
from tests.doors.server import PROGRAM


def service(home: Path, *words: str, code: int = 0) -> str:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": SOURCES}
    ended = subprocess.run(
        [*PROGRAM, "service", *words], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def read(text: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


@pytest.mark.parametrize("kind", ["--user", "--system"])
def test_the_unit_keeps_jobs_alive(tmp_path: Path, kind: str) -> None:
    unit = read(service(tmp_path, "install", kind, "--dry-run"))["Service"]
    program, word = unit["ExecStart"].rsplit(" ", 1)
    assert word == "serve"
    assert os.path.isabs(program.strip('"').split(" ")[0])
    assert unit["KillMode"] == "process"
    assert unit["OOMPolicy"] == "continue"
    assert unit["Restart"] == "on-failure"
    for shut in ("ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "DevicePolicy", "ProtectClock"):
        assert shut not in unit, "a job would inherit it"
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"


def test_a_user_unit(tmp_path: Path) -> None:
    root, home = tmp_path / "root", tmp_path / "home"
    said = service(home, "install", "--user", "--root", str(root))
    unit = root / home.relative_to("/") / ".config/systemd/user/rota.service"
    env_file = root / home.relative_to("/") / ".config/rota/rota.env"
    parsed = read(unit.read_text())
    assert parsed["Install"]["WantedBy"] == "default.target"
    assert parsed["Service"]["EnvironmentFile"] == f"-{home}/.config/rota/rota.env"
    assert stat.S_IMODE(env_file.stat().st_mode) == 0o600
    assert "systemctl --user enable --now rota" in said
    assert "enable-linger" in said
    env_file.write_text("ROTA_PORT=7\n")
    service(home, "install", "--user", "--root", str(root))
    assert env_file.read_text() == "ROTA_PORT=7\n", "settings are not written over"
    assert "installed: " in service(home, "status", "--user", "--root", str(root), code=3)
    service(home, "uninstall", "--user", "--root", str(root))
    assert not unit.exists()
    assert env_file.exists()
    assert "not installed" in service(home, "status", "--user", "--root", str(root), code=4)
    assert "not installed" in service(home, "uninstall", "--user", "--root", str(root))


def test_a_system_unit(tmp_path: Path) -> None:
    said = service(tmp_path, "install", "--system", "--account", "rota", "--root", str(tmp_path))
    parsed = read((tmp_path / "etc/systemd/system/rota.service").read_text())
    assert parsed["Install"]["WantedBy"] == "multi-user.target"
    assert parsed["Service"]["User"] == "rota"
    assert parsed["Service"]["StateDirectory"] == "rota"
    assert parsed["Service"]["EnvironmentFile"] == "-/etc/rota/rota.env"
    assert (tmp_path / "etc/rota/rota.env").exists()
    assert parsed["Service"]["Environment"] == "ROTA_DATA_DIR=/var/lib/rota"
    (line,) = [line for line in said.splitlines() if "token create" in line]
    assert said.index(line) < said.index("enable --now")
    assert "open to every account" in line
    words = shlex.split(line.partition("#")[0])
    assert words[:2] == ["ROTA_DATA_DIR=/var/lib/rota", "rota"]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": SOURCES, "ROTA_DATA_DIR": str(tmp_path / "data")}
    made = subprocess.run([*PROGRAM, *words[2:]], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert made.stdout.startswith("rota_"), "it works as it is printed, before any server ran"


def test_a_unit_that_is_not_ours_stays(tmp_path: Path) -> None:
    unit = tmp_path / "etc/systemd/system/rota.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/mine\n")
    for words in (["install"], ["uninstall"]):
        assert "not Rota's" in service(tmp_path, *words, "--system", "--root", str(tmp_path), code=75)
    assert "/mine" in unit.read_text()


def test_an_account_is_for_the_whole_machine(tmp_path: Path) -> None:
    assert "--system" in service(tmp_path, "install", "--user", "--account", "x", "--dry-run", code=2)


def test_words_with_odd_characters() -> None:
    assert quoted("/opt/rota/bin/rota") == "/opt/rota/bin/rota"
    assert quoted("/my tools/100%/ro$ta") == '"/my tools/100%%/ro$$ta"'
    with pytest.raises(KeyError):
        fill("rota.service", {})


def test_systemd_accepts_it(tmp_path: Path) -> None:
    """Where its checker is at hand."""
    analyze = shutil.which("systemd-analyze")
    text = service(tmp_path, "install", "--system", "--dry-run")
    assert "@" not in text, "every place is filled in"
    if analyze is not None:
        (tmp_path / "rota.service").write_text(text)
        checked = subprocess.run(
            [analyze, "verify", str(tmp_path / "rota.service")], capture_output=True, text=True, timeout=60, check=False
        )
        known_later = "Unknown key 'DelegateSubgroup'"  # systemd 254; older ones ignore it
        said = [line for line in checked.stderr.splitlines() if known_later not in line]
        assert not any("rota.service" in line for line in said), checked.stderr
