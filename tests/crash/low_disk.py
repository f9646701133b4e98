"""Run inside a mount namespace whose data directory is a small tmpfs: take it below the floor, say what happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.app.house import PATIENCE_S, until
from tests.doors.server import PROGRAM, Server

FLOOR_MIB = 16


def main(disk: str, outside: str) -> None:
    ballast, gate = Path(disk) / "ballast", Path(outside) / "gate"
    facts: dict[str, object] = {}
    with Server(Path(disk), nodes=1, gpus=2, env={"ROTA_DISK_FLOOR_MB": str(FLOOR_MIB)}) as server:
        ends = server.submit(f"until test -e {gate}; do sleep 0.1; done; exit 6")
        stopped = server.sleeper()
        for run_id in (ends, stopped):
            server.in_state(run_id, "running")
        waits = server.submit("true")
        _fill(ballast)
        until(lambda: server.get("/readyz").status == 503, "it noticed")
        facts["ready"] = server.get("/readyz").json["detail"]
        facts["refused"] = _refused(server, ends)
        facts["health"] = server.get("/health").ok().get("trouble", "")
        facts["doctor"] = _doctor(server)
        facts["queue paused"] = server.get("/queue").ok()["paused"]
        facts["why"] = server.get(f"/runs/{waits}/explain").ok()["reasons"][0]
        gate.touch()
        server.delete(f"/queue/{stopped}").ok()
        facts["ended"] = [server.in_state(run_id, "failed", "canceled")["state"] for run_id in (ends, stopped)]
        facts["not started"] = server.job(waits)["state"]
        facts["still low"] = server.get("/readyz").status
        ballast.unlink()
        until(lambda: server.get("/readyz").status == 200, "there is room again")
        facts["started"] = server.in_state(waits, "completed", "failed")["state"]
        facts["taken in"] = server.in_state(server.submit("true"), "completed", "failed")["state"]
        facts["said"] = server.said()
    print(json.dumps(facts))


def _fill(ballast: Path) -> None:
    """Leave half of the floor."""
    there = os.statvfs(ballast.parent)
    size = there.f_bavail * there.f_frsize - (FLOOR_MIB << 20) // 2
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _refused(server: Server, run_id: str) -> dict[str, Any]:
    bodies: dict[str, Any] = {
        "/queue/submit": {"run_id": "l", "user": "ann", "command": "true", "gpu_count": 1},
        "/runs": {"name": "r", "command": "true"},
        "/sweeps": {"name": "s", "base_command": "true", "parameters": {"n": [1, 2]}},
        f"/runs/{run_id}/metrics": {"rows": [{"step": 1, "loss": 0.5}]},
        f"/runs/{run_id}/alerts": {"message": "look", "choices": ["yes"]},
        f"/runs/{run_id}/rerun": {},
    }
    answers = {path.replace(run_id, "ID"): server.post(path, body) for path, body in bodies.items()}
    return {path: (answer.status, answer.json["detail"]) for path, answer in answers.items()}


def _doctor(server: Server) -> str:
    env = {**server.env, "ROTA_URL": server.url}
    done = subprocess.run(
        [*PROGRAM, "doctor"], env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    return done.stdout + done.stderr


if __name__ == "__main__":
    main(*sys.argv[1:])
