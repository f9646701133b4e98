"""`memory_gb` and `cpus` are limits where the server may set them; where it may not, its answer says so."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.house import until
from tests.backends.helpers import descendants
from tests.doors.server import PROGRAM, Server

TAKE = "taken = bytearray(400 << 20); print(len(taken), flush=True)"
BOMB = (
    "import os, time\n"
    "ends = time.monotonic() + 60\n"
    "while time.monotonic() < ends:\n"
    "    try: os.fork()\n"
    "    except OSError: time.sleep(0.01)\n"
)
# In a mount namespace of its own the server sees an empty file system where the cgroups are.
HIDE_CGROUPS = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "sh")


def limits_of(server: Server) -> list[str]:
    """What the server says it enforces, once its launcher has told it."""
    until(lambda: _said(server) is not None, "the server says which limits hold")
    return list(_said(server) or ())


def _said(server: Server) -> list[str] | None:
    known: list[str] | None = server.get("/gpu/status").ok()["cluster_status"]["nodes"][0]["enforced"]
    return known


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Server]:
    """A server that may not use cgroups."""
    (tmp_path / "bare").mkdir()
    server = Server(tmp_path / "bare")
    if os.geteuid() == 0:
        server.argv = [*HIDE_CGROUPS, *server.argv]
    with server:
        yield server


def test_a_run_that_takes_more_memory_than_it_asked_for_fails_and_says_why(make_server: Callable[..., Server]) -> None:
    server = make_server(nodes=1, gpus=2)
    if "memory_gb" not in limits_of(server):
        pytest.skip("this account may not use the memory controller (needs root, or a delegated group)")
    asked = {"command": f"python3 -c '{TAKE}'", "name": "hog", "auto_start": True, "memory_gb": 0.1}
    made = server.post("/runs", asked).ok()
    assert "warnings" not in made
    run = _end(server, made["id"])
    assert run["status"] == "failed", "it had 0.1 GB and took 400 MiB"
    assert "out of memory: the kernel killed it" in run["error"]


def test_a_fork_bomb_does_not_keep_the_server_from_answering(make_server: Callable[..., Server]) -> None:
    server = make_server(nodes=1, gpus=2, env={"ROTA_MAX_PROCESSES": "100"})
    if "processes" not in limits_of(server):
        pytest.skip("this account may not use the pids controller (needs root, or a delegated group)")
    bomb = server.post("/runs", {"argv": ["python3", "-c", BOMB], "name": "bomb", "auto_start": True}).ok()
    until(lambda: _processes(server) >= 90, "it has forked as often as it may")
    assert _processes(server) < 120, "100, and the launcher with its idle workers"
    other = server.post("/runs", {"command": "echo fine", "name": "other", "auto_start": True}).ok()
    assert _end(server, other["id"])["status"] == "finished"
    server.post(f"/runs/{bomb['id']}/stop", {}).ok()
    assert _end(server, bomb["id"])["status"] == "stopped"
    until(lambda: _processes(server) < 20, "nothing of it is left")


def test_where_nothing_is_enforced_the_answer_says_so(bare: Server) -> None:
    assert limits_of(bare) == []
    asked: dict[str, Any] = {"command": "true", "name": "asks", "memory_gb": 1, "cpus": 2}
    (warning,) = bare.post("/runs", asked).ok()["warnings"]
    assert warning.startswith("memory_gb and cpus count for placement only")
    assert bare.post("/runs?dry_run=true", asked).ok()["warnings"] == [warning]
    assert "warnings" not in bare.post("/runs", {"command": "true", "name": "asks for nothing"}).ok()
    job = {"run_id": "asks", "user": "ann", "command": "true", "gpu_count": 0, "cpus": 1}
    (one,) = bare.post("/queue/submit", job).ok()["warnings"]
    assert one.startswith("cpus counts for placement only")
    sweep = {"name": "s", "base_command": "true", "parameters": {"a": [1]}, "memory_gb": 1}
    (of_sweep,) = bare.post("/sweeps", sweep).ok()["warnings"]
    assert of_sweep.startswith("memory_gb counts")


def test_the_command_line_and_the_doctor_say_so_too(bare: Server) -> None:
    assert limits_of(bare) == []
    said = _rota(bare, "submit", "--mem", "1", "--no-snapshot", "--", "true")
    assert "note: memory_gb counts for placement only" in said
    assert "memory_gb" not in _rota(bare, "submit", "--no-snapshot", "--", "true")
    assert "not bounded: memory_gb, cpus, processes" in _rota(bare, "doctor")


def _rota(server: Server, *argv: str) -> str:
    done = subprocess.run(
        [*PROGRAM, *argv], env={**server.env, "ROTA_URL": server.url}, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def _end(server: Server, run_id: str) -> dict[str, Any]:
    def ended() -> dict[str, Any]:
        run: dict[str, Any] = server.get(f"/runs/{run_id}").ok()
        return run if run["status"] in ("finished", "failed", "stopped") else {}

    return until(ended, f"{run_id} ends")


def _processes(server: Server) -> int:
    """Processes below the server: its launcher is a subreaper, so none gets away from under it."""
    assert server.process is not None
    return len(descendants(server.process.pid))
