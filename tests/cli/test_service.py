"""`rota service`: the unit files, in a private root."""

from __future__ import annotations

import configparser
import os
import re
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


def tried(home: Path, *words: str) -> dict[str, str]:
    """What would be written: name of the unit -> its text."""
    said = service(home, "install", *words, "--dry-run")
    parts = re.split(r"(?m)^# (/\S+)/(rota\.\w+)$\n", said)[1:]
    return dict(zip(parts[1::3], parts[2::3], strict=True))


def read(text: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


@pytest.mark.parametrize("kind", ["--user", "--system"])
def test_the_unit_keeps_jobs_alive(tmp_path: Path, kind: str) -> None:
    unit = read(tried(tmp_path, kind)["rota.service"])["Service"]
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
    assert "systemctl --user enable --now rota.socket rota.service" in said
    assert "`systemctl --user edit rota`" in unit.read_text()
    assert streams(unit.with_name("rota.socket")) == [
        "127.0.0.1:10000",
        "127.0.0.1:9123",
        f"{home}/.local/share/rota/rota.sock",
    ]
    assert "enable-linger" in said
    env_file.write_text("ROTA_PORT=7\n")
    service(home, "install", "--user", "--root", str(root))
    assert env_file.read_text() == "ROTA_PORT=7\n", "settings are not written over"
    assert streams(unit.with_name("rota.socket"))[0] == "127.0.0.1:7", "and the ports are theirs"
    assert "installed: " in service(home, "status", "--user", "--root", str(root), code=3)
    service(home, "uninstall", "--user", "--root", str(root))
    assert not unit.exists()
    assert not unit.with_name("rota.socket").exists()
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
    assert (tmp_path / "etc/rota/server-account").read_text() == "rota\n", "so that clients send it their tokens"
    assert (tmp_path / "etc/rota/server-account").stat().st_mode & 0o777 == 0o644
    assert parsed["Service"]["Environment"] == "ROTA_DATA_DIR=/var/lib/rota"
    (line,) = [line for line in said.splitlines() if "token create" in line]
    assert said.index(line) < said.index("enable --now")
    assert "open to every account" in line
    words = shlex.split(line.partition("#")[0])
    assert words[:2] == ["ROTA_DATA_DIR=/var/lib/rota", "rota"]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": SOURCES, "ROTA_DATA_DIR": str(tmp_path / "data")}
    made = subprocess.run([*PROGRAM, *words[2:]], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert made.stdout.startswith("rota_"), "it works as it is printed, before any server ran"


def streams(unit: Path) -> list[str]:
    """Where it listens."""
    return [line.partition("=")[2] for line in unit.read_text().splitlines() if line.startswith("ListenStream=")]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", ["127.0.0.1:10000", "127.0.0.1:9123", "/var/lib/rota/rota.sock"]),
        ("ROTA_HOST=0.0.0.0\nROTA_LEASE_PORT=0\n", ["0.0.0.0:10000", "/var/lib/rota/rota.sock"]),
        ("ROTA_HOST='::1'\n#ROTA_PORT=5\nROTA_UNIX_SOCKET=false", ["[::1]:10000", "[::1]:9123"]),
        ("ROTA_HOST=localhost\nROTA_DATA_DIR=/srv/100%", ["127.0.0.1:10000", "127.0.0.1:9123", "/srv/100%%/rota.sock"]),
    ],
)
def test_systemd_holds_the_ports_of_the_settings(tmp_path: Path, settings: str, expected: list[str]) -> None:
    (tmp_path / "etc/rota").mkdir(parents=True)
    (tmp_path / "etc/rota/rota.env").write_text(settings)
    service(tmp_path, "install", "--system", "--root", str(tmp_path))
    found = streams(tmp_path / "etc/systemd/system/rota.socket")
    assert [one.replace("[::1]", "127.0.0.1") if "localhost" in settings else one for one in found] == expected
    unit = read((tmp_path / "etc/systemd/system/rota.service").read_text())
    assert (unit["Service"]["Sockets"], unit["Install"]["Also"]) == ("rota.socket", "rota.socket")
    assert "RemoveOnStop=yes" in (tmp_path / "etc/systemd/system/rota.socket").read_text(), "no file without a server"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0", "else systemd would let go of the ports after some failures"


def test_settings_that_name_no_port_are_refused(tmp_path: Path) -> None:
    (tmp_path / "etc/rota").mkdir(parents=True)
    for text, said in (
        ("ROTA_PORT=0", "choose one"),
        ("ROTA_PORT=x", "ROTA_PORT"),
        ("ROTA_HOST=no.such.", "ROTA_HOST"),
    ):
        (tmp_path / "etc/rota/rota.env").write_text(text)
        assert said in service(tmp_path, "install", "--system", "--root", str(tmp_path), code=75)
    assert not (tmp_path / "etc/systemd").exists()


@pytest.mark.parametrize("name", ["rota.service", "rota.socket"])
def test_a_unit_that_is_not_ours_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/rota.service").write_text("# Written by `rota service install`\n")
    unit = tmp_path / "etc/systemd/system" / name
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
    units = tried(tmp_path, "--system")
    assert list(units) == ["rota.service", "rota.socket"]
    assert "@" not in "".join(units.values()), "every place is filled in"
    if analyze is not None:
        for name, text in units.items():
            (tmp_path / name).write_text(text)
        paths = [str(tmp_path / name) for name in units]
        checked = subprocess.run([analyze, "verify", *paths], capture_output=True, text=True, timeout=60, check=False)
        known_later = "Unknown key 'DelegateSubgroup'"  # systemd 254; older ones ignore it
        said = [line for line in checked.stderr.splitlines() if known_later not in line]
        assert not any(name in line for name in units for line in said), checked.stderr
