"""Run inside a mount namespace whose data directory is a small tmpfs: a job takes every block that comes free, say what
happened."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from tests.app.house import until
from tests.doors.server import Server

FLOOR_MIB = 8
RUNS = 24  # so many ends do not fit into what the log happens to have left
TAKE_ALL = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
end = time.monotonic() + 240  # where the test fails, nobody else ends it
while time.monotonic() < end:
    size = 1 << 20
    while size >= 4096:
        try:
            os.write(fd, bytes(size))
        except OSError:
            size //= 2
    time.sleep(0.002)
"""


def main(disk: str, outside: str) -> None:
    facts: dict[str, Any] = {}
    gate = Path(outside) / "gate"
    with Server(Path(disk), nodes=1, gpus=RUNS + 2, env={"ROTA_DISK_FLOOR_MB": str(FLOOR_MIB)}) as server:
        ends = server.submit(f"until test -e {gate}; do sleep 0.1; done; exit 6")
        others = [server.sleeper() for _ in range(RUNS)]
        for run_id in (ends, *others):
            server.in_state(run_id, "running")
        greedy = server.submit(shlex.join([sys.executable, "-c", TAKE_ALL, f"{disk}/taken"]))
        until(lambda: server.get("/readyz").status == 503 and _free(disk) < 4096, "it has taken all there is")
        gate.touch()
        facts["ended"] = server.in_state(ends, "failed", "canceled")["state"]
        facts["answers"] = sorted({server.delete(f"/queue/{run_id}").status for run_id in others})
        facts["canceled"] = sorted({server.in_state(run_id, "failed", "canceled")["state"] for run_id in others})
        facts["left"] = _free(disk)
        facts["answer of its own"] = server.delete(f"/queue/{greedy}").status
        facts["greedy"] = server.in_state(greedy, "failed", "canceled")["state"]
        facts["held"] = sum(gpu["status"] != "available" for gpu in server.get("/gpus").ok())
        os.unlink(f"{disk}/taken")
    print(json.dumps(facts))


def _free(disk: str) -> int:
    there = os.statvfs(disk)
    return there.f_bavail * there.f_frsize


if __name__ == "__main__":
    main(*sys.argv[1:])
