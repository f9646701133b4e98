"""`rota up`, as a newcomer meets it: what it says is true, and the command it suggests works as it stands."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rota.api import assemble
from rota.config import Settings
from tests.app.house import PATIENCE_S
from tests.doors.server import curl

ROTA = str(Path(sys.executable).with_name("rota"))


def clean_env(where: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(where)}


@contextmanager
def up(where: Path, **env: str) -> Iterator[list[str]]:
    """The lines it says until it is ready."""
    argv = [ROTA, "up", "--port", "0", "--lease-port", "0", "--data-dir", str(where / "data"), "--nodes", "1"]
    with (where / "log").open("ab") as log:
        process = subprocess.Popen(
            [*argv, "--gpus", "2"], cwd=where, env={**clean_env(where), **env}, stdout=subprocess.PIPE, stderr=log
        )
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line.decode().rstrip())
            if "Ctrl-C" in said[-1]:
                break
        yield said
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


def word_after(said: list[str], name: str) -> str:
    (line,) = [line for line in said if line.strip().startswith(name)]
    return line.split(name)[1].split()[0]


def test_what_it_says_is_true(tmp_path: Path) -> None:
    with up(tmp_path) as said:
        assert "1 node, 2 SIMULATED GPUs" in said[0]
        url = re.search(r"http://[0-9.:]+[0-9]", said[0])
        assert url is not None
        link = word_after(said, "log in")
        first = curl(link)
        assert (first.status, first.headers["location"]) == (303, "/")
        cookie = first.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert curl(link).status == 401  # once
        for again in (link, link.partition("?")[0]):
            seen = curl(again, headers=["Accept: text/html,application/xhtml+xml"])
            assert (seen.status, seen.headers["content-type"].partition(";")[0]) == (401, "text/html")
            assert b"rota login --link" in seen.body and b'href="/"' in seen.body, "what to do next"
        session = cookie.partition(";")[0]
        assert curl(f"{url[0]}/whoami", headers=[f"Cookie: {session}"]).ok()["role"] == "admin"
        token = Path(word_after(said, "admin token"))
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert curl(f"{url[0]}/runs").status == 401
        assert curl(f"{url[0]}/runs", headers=[f"X-Auth-Token: {token.read_text().strip()}"]).ok() == []
        assert curl(word_after(said, "reference")).status == 200
        command = said[said.index("Try, in another terminal:") + 1]
        assert "submit --follow -G 2" in command
        done = subprocess.run(
            ["env", *shlex.split(command)],
            cwd=tmp_path,
            env=clean_env(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "my GPUs are 0,1\n"), done.stderr


def test_the_command_to_try_needs_no_variable_of_the_servers_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    usual, other = tmp_path / ".local" / "share" / "rota", tmp_path / "other place"
    sockets: Any = SimpleNamespace(unix=object())

    def suggested(data_dir: Path) -> str:
        house: Any = SimpleNamespace(settings=Settings(data_dir))
        return assemble._command(house, sockets)

    for named in ("", str(other), str(usual)):
        monkeypatch.setenv("ROTA_DATA_DIR", named)
        assert suggested(other).startswith(f"ROTA_URL='unix://{other}/rota.sock' ")
        assert "ROTA_URL" not in suggested(usual)


def test_the_token_stays(tmp_path: Path) -> None:
    with up(tmp_path) as said:
        first = Path(word_after(said, "admin token")).read_text()
    with up(tmp_path) as said:
        assert Path(word_after(said, "admin token")).read_text() == first
    assert first.strip() not in (tmp_path / "log").read_text()


def test_below_the_floor_of_the_disk_nobody_is_sent_to_resume(tmp_path: Path) -> None:
    """No command ends that pause: it ends when there is room."""
    with up(tmp_path, ROTA_DISK_FLOOR_MB="100000000") as said:
        (paused,) = [line for line in said if "PAUSED" in line]
        assert "below the floor" in paused and paused.endswith("make room, it goes on by itself")
        argv = [ROTA, "queue", "--server", f"unix://{tmp_path}/data/rota.sock"]
        done = subprocess.run(argv, env=clean_env(tmp_path), capture_output=True, text=True, check=False)
        assert "scheduling is paused: the disk of " in done.stdout and "until there is room again" in done.stdout
        assert "admin" not in done.stdout
        argv = [ROTA, "doctor", "--server", f"unix://{tmp_path}/data/rota.sock"]
        done = subprocess.run(argv, env=clean_env(tmp_path), capture_output=True, text=True, check=False)
        assert "make room on the server's disk" in done.stdout and "orchestrator/start" not in done.stdout


def test_a_taken_port_is_named_before_anything_is_opened(tmp_path: Path) -> None:
    with up(tmp_path) as said:
        port = said[0].rpartition(":")[0].rpartition(":")[2]
        argv = [ROTA, "up", "--port", port, "--lease-port", "0", "--data-dir", str(tmp_path / "other")]
        done = subprocess.run(argv, env=clean_env(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 75
    assert f"port {port}" in done.stderr
    assert "--port" in done.stderr
    assert "make" not in done.stderr
    assert not (tmp_path / "other").exists()


def test_what_lies_in_the_place_of_its_files_is_replaced_or_named(tmp_path: Path) -> None:
    """To read a FIFO would wait for ever; what cannot be replaced was told as output that cannot be written."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "lock").touch()
    (data / "nudge").write_text("no FIFO")
    os.mkfifo(data / "session.key")
    with up(tmp_path):
        assert (data / "nudge").is_fifo() and (data / "session.key").is_file()
    (data / "nudge").unlink()
    (data / "nudge").mkdir()
    argv = [ROTA, "serve", "--port", "0", "--lease-port", "0", "--data-dir", str(data), "--nodes", "1", "--gpus", "2"]
    done = subprocess.run(argv, env=clean_env(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 75
    assert f"{data}/nudge: Is a directory" in done.stderr and "output" not in done.stderr


def test_under_make_it_is_said_how_flags_go_through_it(tmp_path: Path) -> None:
    """`-o install`: what this test runs with is there already, and stays as it is."""
    root = Path(__file__).parents[2]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        flags = f"--port {taken.getsockname()[1]} --lease-port 0 --data-dir {tmp_path / 'data'}"
        argv = ["make", "-C", str(root), "-o", "install", "up", f"BIN={Path(ROTA).parent}", f"ARGS={flags}"]
        done = subprocess.run(argv, env=clean_env(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "choose another with --port" in done.stderr
    assert "make up ARGS='--port 10001 --lease-port 9124'" in done.stderr
