"""A real server and a person who uses it with Slurm's words."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cli2.kit import Person, tool, until
from tests.doors.server import Server


class Lab:
    def __init__(self, where: Path, *, nodes: int = 2, gpus: int = 4) -> None:
        self.server = Server(where, nodes=nodes, gpus=gpus)
        (where / "home").mkdir()
        self.person = Person(where / "home", "")
        self.here = self.person.where
        del self.person.env["GPUSCHED_URL"]
        self.person.env["ROTA_DATA_DIR"] = str(self.server.data)  # the socket there says who calls
        self.person.env["USER"] = "root"

    def slurm(self, name: str, *words: str, code: int = 0, given: bytes | None = None) -> str:
        """What the tool printed; its exit code must be `code`."""
        ended = self.slurm_all(name, *words, given=given)
        assert ended.returncode == code, ended.stderr.decode()
        return ended.stdout.decode()

    def slurm_all(self, name: str, *words: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        process = self.person.start(*tool(name), *words, stdin=subprocess.PIPE)
        return self.person.ended(process, given or b"")

    def sbatch(self, *words: str) -> str:
        return self.slurm("sbatch", "--parsable", *words).strip()

    def state(self, run_id: str) -> str:
        status: str = self.server.get(f"/runs/{run_id}").ok()["status"]
        return status

    def wait_for(self, run_id: str, *states: str) -> None:
        until(lambda: self.state(run_id) in states, f"{run_id} is {states}")

    def file(self, name: str, text: str) -> str:
        (self.here / name).write_text(text)
        return name

    def finish(self) -> None:
        for status in ("ready", "queued", "launching", "running"):
            for run in self.server.get(f"/runs?status={status}&limit=1000").ok():
                self.server.post(f"/runs/{run['id']}/stop")
        self.person.finish()
        until(lambda: not self.server.get("/queue").ok()["running"], "nothing runs")
        self.server.finish()
