"""Processes as people start them: the stand-in server, `rota run` and the shims; each ended by its own pid."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

SOURCES = str(Path(__file__).parents[2] / "src")
PATIENCE_S = 30.0
T = TypeVar("T")


def until(look: Callable[[], T], what: str = "it") -> T:
    """What `look` returns once that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not come true within {PATIENCE_S:g} s"
        time.sleep(0.02)


class StandIn:
    """The server of tests.cli2.standin on a port of its own."""

    def __init__(self, gpus: int = 4, token: str = "") -> None:
        self.env = {"PATH": os.environ["PATH"], "STANDIN_GPUS": str(gpus), "STANDIN_TOKEN": token}
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *leases: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("standin.py")), str(self.port), *leases],
            env=self.env,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def get(self, path: str) -> Any:
        from rota.cli.lease.door import Door

        status, value = Door(self.url, self.env["STANDIN_TOKEN"]).call("GET", path)
        assert status == 200, value
        return value

    def count(self, status: str) -> int:
        return sum(job["status"] == status for job in self.get("/jobs"))

    def wait_for(self, *, running: int | None = None, queued: int | None = None) -> None:
        def fits() -> bool:
            return running in (None, self.count("running")) and queued in (None, self.count("queued"))

        until(fits, f"running {running}, queued {queued}")


class Person:
    """Somebody at a terminal: their environment, and the processes they started."""

    def __init__(self, where: Path, url: str) -> None:
        self.where = where
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(where),
            "PYTHONPATH": SOURCES,
            "GPUSCHED_URL": url,
            "PYTHONWARNINGS": "error",
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *argv: str | bytes, **more: Any) -> subprocess.Popen[bytes]:
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(argv, **{"env": self.env, "cwd": self.where, **pipes, **more})
        self._started.append(process)
        return process

    def run(self, *argv: str | bytes, **more: Any) -> subprocess.CompletedProcess[bytes]:
        return self.ended(self.start(*argv, **more))

    def ended(self, process: subprocess.Popen[bytes], given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        out, err = process.communicate(given, timeout=PATIENCE_S)
        assert b"Traceback" not in (err or b""), err.decode()
        return subprocess.CompletedProcess(process.args, process.returncode, out or b"", err or b"")

    def finish(self) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.communicate()


ROTA = (sys.executable, "-m", "rota")
RUN = (*ROTA, "run")


def tool(name: str) -> tuple[str, ...]:
    return sys.executable, "-m", f"rota.cli.slurm.{name}"
