"""kill -9 of the server at its k-th call of each state-changing system call, from submit to cancel, and in a take-over.

strace is attached to all threads of a server that is up and waits; children that exec are let go, so that only the
server is hit. For each call name k grows until the script gets through unharmed: then every point was tried.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.kit import Template, violations, wait_for_ack

Script = Callable[[Template, Path, str, int], bool]

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]

# name -> every so many calls in CI; the soak tries each one
LIFE = {
    "pwrite64": 8,
    "fsync": 1,
    "write": 2,
    "openat": 1,
    "sendto": 2,
    "rename": 1,
    "unlink": 2,
    "pidfd_send_signal": 1,
    "flock": 1,
    "ftruncate": 1,
}
TAKE_OVER = {
    "pwrite64": 8,
    "fsync": 1,
    "write": 2,
    "openat": 7,
    "rename": 1,
    "unlink": 2,
    "flock": 1,
    "fcntl": 17,
    "clone3": 1,
    "sendto": 2,
}
ALWAYS_CALLED = {"pwrite64", "fsync", "openat"}  # the others depend on who is quicker


def killed_at(template: Template, pid: int, call: str, k: int, where: Path) -> bool:
    """Let the waiting server go on with a bomb under its k-th `call`; False when it got through without reaching it."""
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={k}"]
    tracer = subprocess.Popen(
        ["strace", "-f", "-b", "execve", "-o", str(where / "trace"), *inject, "-p", str(pid)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr is not None
    assert "attached" in tracer.stderr.readline()
    (where / "go").touch()
    status = template.wait(pid)
    tracer.stderr.close()
    tracer.wait()
    assert status in (0, -9), f"the server failed at {call} {k}: {status}"
    return status == -9


def a_life(template: Template, where: Path, call: str, k: int) -> bool:
    where.mkdir()
    data_dir, marks, acks, go = where / "data", where / "marks", where / "acks", where / "go"
    pid = template.spawn("life", data_dir=str(data_dir), marks=str(marks), acks=str(acks), go=str(go))
    wait_for_ack(acks, "ready")
    killed = killed_at(template, pid, call, k, where)
    assert violations(template, data_dir, marks, acks) == [], f"killed at {call} number {k}"
    return killed


def a_take_over(template: Template, where: Path, call: str, k: int) -> bool:
    where.mkdir()
    data_dir, marks, acks, go = where / "data", where / "marks", where / "acks", where / "go"
    assert template.wait(template.spawn("leave_work", data_dir=str(data_dir), marks=str(marks), acks=str(acks))) == -9
    pid = template.spawn("take_over", data_dir=str(data_dir), acks=str(acks), go=str(go))
    wait_for_ack(acks, "forked")
    killed = killed_at(template, pid, call, k, where)
    assert violations(template, data_dir, marks, acks) == [], f"killed at {call} number {k}"
    return killed


def every_point(script: Script, template: Template, where: Path, call: str, every: int) -> int:
    k, points = 1, 0
    while script(template, where / f"{call}-{k}", call, k):
        points += 1
        k += every
        assert k < 2000, f"{call} never ends"
    return points


@pytest.mark.parametrize("call", LIFE)
def test_killed_while_runs_live(template: Template, tmp_path: Path, call: str) -> None:
    points = every_point(a_life, template, tmp_path, call, LIFE[call])
    assert points >= 5 or call not in ALWAYS_CALLED, f"only {points} points: the injection does not reach the server"


@pytest.mark.parametrize("call", TAKE_OVER)
def test_killed_while_taking_over(template: Template, tmp_path: Path, call: str) -> None:
    points = every_point(a_take_over, template, tmp_path, call, TAKE_OVER[call])
    assert points >= 5 or call not in ALWAYS_CALLED, f"only {points} points: the injection does not reach the server"


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("call", LIFE)
def test_killed_at_every_call_of_a_life(template: Template, tmp_path: Path, call: str) -> None:
    every_point(a_life, template, tmp_path, call, 1)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("call", TAKE_OVER)
def test_killed_at_every_call_of_a_take_over(template: Template, tmp_path: Path, call: str) -> None:
    every_point(a_take_over, template, tmp_path, call, 1)
