"""A real server for the commands that talk to one: its own data directory, port and jobs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rota.client import Client, RotaError
from tests.app.house import PATIENCE_S, SOURCES, until

PROGRAM = [sys.executable, "-c", "from rota.cli.main import main; main()"]


class Server:
    """`rota serve` in a process of its own, and the shell of somebody who uses it."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.data = where / "data"
        self.home = where / "home"
        self.home.mkdir()
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "PYTHONPATH": SOURCES,
            "ROTA_DATA_DIR": str(self.data),
            "TERM": "xterm",
        }
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str, port: int = 0) -> None:
        words = [*PROGRAM, "serve", "--port", str(port), "--lease-port", "0", "--nodes", "2", "--gpus", "4", *flags]
        with (self.where / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                words, env=self.env, cwd=self.where, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert " at http://" in line, line + (self.where / "server.log").read_text()
        self.url = line.partition(" at ")[2].partition(": ")[0].strip()

    @property
    def socket(self) -> str:
        return f"unix://{self.data}/rota.sock"

    def client(self) -> Client:
        return Client(self.socket)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(PATIENCE_S)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def rota(self, *args: str | bytes, **more: Any) -> subprocess.CompletedProcess[bytes]:
        """The command as people run it. A traceback fails the test, whatever the test is about."""
        given = {"env": self.env, "cwd": self.home, "stdin": subprocess.DEVNULL, "capture_output": True, **more}
        done = subprocess.run([*PROGRAM, *args], timeout=PATIENCE_S, check=False, **given)
        assert b"Traceback" not in (done.stderr or b""), done.stderr.decode()
        return done

    def out(self, *args: str | bytes, **more: Any) -> str:
        done = self.rota(*args, **more)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def json(self, *args: str) -> Any:
        """Exactly one JSON value on stdout."""
        return json.loads(self.out(*args, "--json"))

    def popen(self, *args: str, **more: Any) -> subprocess.Popen[bytes]:
        given = {"env": self.env, "cwd": self.home, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
                 "stderr": subprocess.PIPE, **more}  # fmt: skip
        return subprocess.Popen([*PROGRAM, *args], **given)

    def submit(self, *args: str) -> str:
        return self.out("submit", "-q", *args).strip()

    def until_state(self, run_id: str, *states: str) -> None:
        with self.client() as client:
            until(lambda: client.run(run_id).status in states, f"{run_id} is {' or '.join(states)}")

    def clear(self) -> None:
        """Nothing is left running or waiting."""
        with self.client() as client:
            for run in client.runs(status="ready,queued,launching,running"):
                with contextlib.suppress(RotaError):
                    client.cancel(run.id, grace_s=0.0)
            until(lambda: not list(client.runs(status="ready,queued,launching,running")), "everything has ended")


@contextmanager
def running_server(*flags: str) -> Iterator[Server]:
    where = Path(tempfile.mkdtemp(prefix="rota-"))  # short: the name of a unix socket has 107 bytes
    server = Server(where)
    try:
        server.start(*flags)
        yield server
        if server.process is not None:
            server.clear()
    finally:
        server.stop()
        shutil.rmtree(where, ignore_errors=True)
