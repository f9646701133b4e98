"""Run inside a mount namespace whose data directory is a small tmpfs: fill it to its last byte, say what happened."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.crash.low_disk import FLOOR_MIB
from tests.doors.server import Server


def main(disk: str, outside: str) -> None:
    facts: dict[str, Any] = {}
    filler, gate = Path(disk) / "filler", Path(outside) / "gate"
    with Server(Path(disk), nodes=1, gpus=2, env={"ROTA_DISK_FLOOR_MB": str(FLOOR_MIB)}) as server:
        stopped = server.sleeper()
        ends = server.submit(f"until test -e {gate}; do sleep 0.1; done; exit 6")
        for run_id in (stopped, ends):
            server.in_state(run_id, "running")
        _fill(filler)
        facts["left"] = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        facts["answer"] = server.delete(f"/queue/{stopped}").status
        states = [server.in_state(stopped, "failed", "canceled")["state"]]
        gate.touch()
        states.append(server.in_state(ends, "failed", "canceled")["state"])
        facts["ballast"] = (server.data / "rota.ballast").exists()
        facts["ended"] = states
        filler.unlink()
    print(json.dumps(facts))


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 16, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


if __name__ == "__main__":
    main(*sys.argv[1:])
