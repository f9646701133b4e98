"""Run inside a mount namespace whose data directory is a small tmpfs: print more than it has, say what happened."""

from __future__ import annotations

import json
import os
import pwd
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.app.house import until
from tests.crash.low_disk import FLOOR_MIB
from tests.doors.server import Server

PRINTED = 100 << 20
ACCOUNT = "nobody"  # with the server's own the job would write the log itself


def main(disk: str, _: str) -> None:
    with tempfile.TemporaryDirectory(prefix="rota-loud-") as outside:  # pytest's own is closed to other accounts
        os.chown(outside, pwd.getpwnam(ACCOUNT).pw_uid, -1)
        print(json.dumps(_tell(disk, Path(outside))))


def _tell(disk: str, outside: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    filled, gate = outside / "filled", outside / "gate"
    env = {"ROTA_DISK_FLOOR_MB": str(FLOOR_MIB)}
    with Server(Path(disk), nodes=1, gpus=3, env=env) as server:
        wait = f"until test -e {gate}; do sleep 0.1; done"
        ends = _submit(server, f"{wait}; exit 6")
        stopped = _submit(server, "exec sleep 100000")
        for run_id in (ends, stopped):
            server.in_state(run_id, "running")
        prints = f"head -c {PRINTED} /dev/zero; touch {filled}; {wait}; exit 3"
        loud = _submit(server, prints)
        until(filled.exists, "all is printed")
        until(lambda: server.get("/readyz").status == 503, "it noticed")
        there = os.statvfs(disk)
        facts["free MiB"] = there.f_bavail * there.f_frsize / (1 << 20)
        server.delete(f"/queue/{stopped}").ok()
        facts["stopped"] = server.in_state(stopped, "failed", "canceled")["state"]
        gate.touch()
        facts["ended"] = [server.in_state(run_id, "failed")["error_message"] for run_id in (loud, ends)]
        facts["log"] = server.get(f"/runs/{loud}/logs?offset=-200").body.decode(errors="replace")
    return facts


def _submit(server: Server, command: str) -> str:
    body = {"name": "a", "command": command, "workdir": "/", "account": ACCOUNT, "gpu_count": 1, "auto_start": True}
    answer: str = server.post("/runs", body).ok()["id"]
    return answer


if __name__ == "__main__":
    main(*sys.argv[1:])
