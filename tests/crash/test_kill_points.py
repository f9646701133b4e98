"""kill -9 of the server at its k-th call of each state-changing system call, from submit to cancel.

strace is attached to all threads of a server that is up and waits; children that exec are let go, so that only the
server is hit. For each call name k grows until the script gets through unharmed: then every point was tried.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.crash.kit import Template, violations, wait_for_ack

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]

# name -> every so many calls in CI; the soak tries each one
CALLS = {
    "pwrite64": 3,
    "fdatasync": 1,
    "write": 4,
    "openat": 8,
    "sendto": 1,
    "sendmsg": 1,
    "mkdir": 1,
    "rename": 1,
    "link": 1,
    "unlink": 1,
    "fsync": 1,
    "pidfd_send_signal": 1,
    "kill": 1,
    "flock": 1,
    "ftruncate": 1,
}


def one_point(template: Template, where: Path, call: str, k: int) -> bool:
    """Kill at the k-th `call`; True when the server got through without reaching it."""
    where.mkdir()
    data_dir, marks, acks, go = where / "data", where / "marks", where / "acks", where / "go"
    pid = template.spawn("life", data_dir=str(data_dir), marks=str(marks), acks=str(acks), go=str(go))
    wait_for_ack(acks, "ready")
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={k}"]
    tracer = subprocess.Popen(
        ["strace", "-f", "-b", "execve", "-o", str(where / "trace"), *inject, "-p", str(pid)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr is not None
    assert "attached" in tracer.stderr.readline()
    go.touch()
    status = template.wait(pid)
    tracer.stderr.close()
    tracer.wait()
    assert status in (0, -9), f"the server failed at {call} {k}: {status}"
    assert violations(template, data_dir, marks, acks) == [], f"killed at {call} number {k}"
    return status == 0


def all_points(template: Template, where: Path, call: str, every: int) -> int:
    points = 0
    k = 1
    while not one_point(template, where / f"{call}-{k}", call, k):
        points += 1
        k += every
        assert k < 2000, f"{call} never ends"
    return points


@pytest.mark.parametrize("call", CALLS)
def test_kill_at_every_few_calls(template: Template, tmp_path: Path, call: str) -> None:
    points = all_points(template, tmp_path, call, CALLS[call])
    if call in ("pwrite64", "fdatasync", "openat", "write"):
        assert points >= 3, f"only {points} points of {call}: the injection does not reach the server"


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("call", CALLS)
def test_kill_at_every_call(template: Template, tmp_path: Path, call: str) -> None:
    all_points(template, tmp_path, call, 1)
