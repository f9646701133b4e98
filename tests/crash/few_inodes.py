"""Run inside a mount namespace whose data directory has few inodes: let a job take them all, say what happened."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.app.house import until
from tests.crash.low_disk import _doctor, _refused
from tests.doors.server import Server, curl

TAKE_ALL = """
import os, pathlib, sys, time
os.chdir(os.environ["ROTA_CHECKPOINT_DIR"])
number = 0
while True:
    try:
        os.close(os.open(str(number), os.O_CREAT))
        number += 1
    except OSError:
        pathlib.Path(sys.argv[1]).touch()
        time.sleep(0.001)
"""


class Taker:
    """A job that takes every inode there is, and every one that comes free."""

    def __init__(self, server: Server, outside: Path) -> None:
        program, done = outside / "take.py", outside / "taken"
        program.write_text(TAKE_ALL)
        done.unlink(missing_ok=True)
        self._server = server
        self.id = server.submit(f"{sys.executable} {program} {done}")
        until(done.exists, "it has taken all")
        server.in_state(self.id, "running")

    def end(self) -> str:
        self._server.delete(f"/queue/{self.id}").ok()
        state: str = self._server.in_state(self.id, "failed", "canceled")["state"]
        return state

    def give_back(self) -> None:
        for path in Path(self._server.get(f"/runs/{self.id}").ok()["run_dir"]).iterdir():
            path.unlink()


def main(disk: str, outside: str) -> None:
    facts = {"floor": _with_a_floor(Path(disk), Path(outside)), "no floor": _without(Path(disk), Path(outside))}
    facts["restart"] = _restart(Path(disk))
    print(json.dumps(facts))


def _with_a_floor(disk: Path, outside: Path) -> dict[str, Any]:
    gate, facts = outside / "gate", dict[str, Any]()
    (disk / "one").mkdir()
    with Server(disk / "one", nodes=1, gpus=3) as server:
        ends = server.submit(f"until test -e {gate}; do sleep 0.1; done; exit 6")
        stopped = server.sleeper()
        for run_id in (ends, stopped):
            server.in_state(run_id, "running")
        taker = Taker(server, outside)
        until(lambda: server.get("/readyz").status == 503, "it noticed")
        facts["ready"] = server.get("/readyz").json["detail"]
        facts["refused"] = _refused(server, ends)
        facts["health"] = server.get("/health").ok().get("trouble", "")
        facts["doctor"] = _doctor(server)
        gate.touch()
        server.delete(f"/queue/{stopped}").ok()
        facts["ended"] = [server.in_state(one, "failed", "canceled")["state"] for one in (ends, stopped)]
        facts["left at the end"] = os.statvfs(disk).f_favail
        facts["ended"].append(taker.end())
        facts["held"] = sum(gpu["status"] != "available" for gpu in server.get("/gpus").ok())
        taker.give_back()
        until(lambda: server.get("/readyz").status == 200, "there is room again")
        facts["after"] = server.in_state(server.submit("true"), "completed", "failed")["state"]
        until(lambda: len(list((server.data / "spare").iterdir())) == 128, "the spare files are there again")
    return facts


def _without(disk: Path, outside: Path) -> dict[str, Any]:
    """Then a start meets a full disk: as it can when a disk fills within a second."""
    (disk / "two").mkdir()
    with Server(disk / "two", nodes=1, gpus=2, env={"ROTA_DISK_FLOOR_MB": "0"}) as server:
        taker = Taker(server, outside)
        late = server.submit("true", max_retries=0)
        until(lambda: "no room" in server.job(late)["why"], "it could not be started")
        seen = {"before": server.job(late)["state"], "taker": taker.end()}
        taker.give_back()
        seen["after"] = server.in_state(late, "completed", "failed")["state"]
    return seen


class AnyServer(Server):
    """One that may be up without being ready for work."""

    def _ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.said()}"
        return curl(f"{self.url}/readyz", may_fail=True).status != 0


def _restart(disk: Path) -> dict[str, Any]:
    """A server that was stopped while there was no inode left has to open its database."""
    (disk / "three").mkdir()
    (disk / "files").mkdir()
    with AnyServer(disk / "three", nodes=1, gpus=2) as server:
        stopped = server.sleeper()
        server.in_state(stopped, "running")
        until((server.data / "rota.ballast").exists, "it has made its ballast")
        assert server.stop() == 0
        files = _take_all(disk / "files")
        server.start()
        facts = {"ready": server.get("/readyz").status}
        server.delete(f"/queue/{stopped}").ok()
        facts["ended"] = server.in_state(stopped, "failed", "canceled")["state"]
        for path in files:
            path.unlink()
        until(lambda: server.get("/readyz").status == 200, "there is room again")
    return facts


def _take_all(where: Path) -> list[Path]:
    files: list[Path] = []
    try:
        while True:
            path = where / str(len(files))
            path.touch()
            files.append(path)
    except OSError:
        return files


if __name__ == "__main__":
    main(*sys.argv[1:])
