"""A real server, and a person who uses it: their home, their environment and the processes they started."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rota.client import Client, RotaError
from rota.client.calls import raw
from rota.client.exchange import Call
from tests.app.house import PATIENCE_S, SOURCES, until
from tests.doors.server import PROGRAM, Server

RUN = (*PROGRAM, "run")
LIVE = "ready,queued,launching,running"


class _Process(subprocess.Popen[bytes]):
    """Is killed where a test fails beside it: its end would be waited for, and the failure told by a time-out."""

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)


def tool(name: str) -> tuple[str, ...]:
    """One of Slurm's names, as its shim starts it."""
    return sys.executable, "-m", f"rota.cli.slurm.{name}"


class Lab:
    """`with Lab(where) as lab:`. Many tests may share one: each is a `visit`, at whose end nothing is left."""

    def __init__(self, where: Path, *, nodes: int = 2, gpus: int = 4) -> None:
        self.server = Server(where, nodes=nodes, gpus=gpus)
        self.home = where / "home"
        self.env: dict[str, str] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._settle(self.home)

    def _settle(self, home: Path) -> None:
        home.mkdir()
        self.home = home
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "USER": "root",
            "TERM": "xterm",
            "PYTHONPATH": SOURCES,
            "PYTHONWARNINGS": "error",
            "ROTA_DATA_DIR": str(self.server.data),  # the socket there says who calls
        }

    def __enter__(self) -> Lab:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.clear()
        finally:
            self.server.finish()

    @contextmanager
    def visit(self, home: Path) -> Iterator[Lab]:
        self.server.must_live()
        self._settle(home)
        yield self
        self.clear()

    def clear(self) -> None:
        """Nobody is left waiting, nothing running, and what ran is out of sight."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait(PATIENCE_S)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
        self._started.clear()
        if self.server.process is None:
            self.server.start()
        self.server.must_live()
        with self.client() as client:
            for run in client.runs(status=LIVE):
                with contextlib.suppress(RotaError):  # it has just ended
                    client.cancel(run.id, grace_s=0.0)
            until(lambda: not list(client.runs(status=LIVE)), "everything has ended")
            for run in list(client.runs()):
                client.do(Call("POST", f"/runs/{run.id}/archive", lambda data: data))

    def client(self) -> Client:
        return Client(f"unix://{self.server.data}/rota.sock")

    # -- any process ------------------------------------------------------------------------------------------------
    def start(self, *argv: str | bytes, **more: Any) -> subprocess.Popen[bytes]:
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = _Process(argv, **{"env": self.env, "cwd": self.home, **pipes, **more})
        self._started.append(process)
        return process

    def ended(self, process: subprocess.Popen[bytes], given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """A traceback fails the test, whatever the test is about."""
        out, err = process.communicate(given, timeout=PATIENCE_S)
        assert b"Traceback" not in (err or b""), err.decode()
        return subprocess.CompletedProcess(process.args, process.returncode, out or b"", err or b"")

    def run(self, *argv: str | bytes, given: bytes | None = None, **more: Any) -> subprocess.CompletedProcess[bytes]:
        if given is not None:
            more["stdin"] = subprocess.PIPE
        return self.ended(self.start(*argv, **more), given)

    # -- rota -------------------------------------------------------------------------------------------------------
    def rota(self, *words: str | bytes, **more: Any) -> subprocess.CompletedProcess[bytes]:
        return self.run(*PROGRAM, *words, **more)

    def popen(self, *words: str | bytes, **more: Any) -> subprocess.Popen[bytes]:
        return self.start(*PROGRAM, *words, **more)

    def out(self, *words: str | bytes, **more: Any) -> str:
        done = self.rota(*words, **more)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def json(self, *words: str) -> Any:
        """Exactly one JSON value on stdout."""
        return json.loads(self.out(*words, "--json"))

    def submit(self, *words: str) -> str:
        return self.out("submit", "-q", *words).strip()

    # -- Slurm's names ----------------------------------------------------------------------------------------------
    def slurm_all(self, name: str, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return self.run(*tool(name), *words, given=given)

    def slurm(self, name: str, *words: str, code: int = 0, given: bytes = b"") -> str:
        """What the tool printed; its exit code must be `code`."""
        ended = self.slurm_all(name, *words, given=given)
        assert ended.returncode == code, ended.stderr.decode()
        return ended.stdout.decode()

    def sbatch(self, *words: str) -> str:
        return self.slurm("sbatch", "--parsable", *words).strip()

    # -- what the server knows --------------------------------------------------------------------------------------
    def show(self, run_id: str) -> Any:
        with self.client() as client:
            return client.do(raw(Call("GET", f"/runs/{run_id}", lambda data: data)))

    def state(self, run_id: str) -> str:
        status: str = self.show(run_id)["status"]
        return status

    def wait_for(self, run_id: str, *states: str) -> None:
        until(lambda: self.state(run_id) in states, f"{run_id} is {' or '.join(states)}")

    def until_queue(self, *, running: int | None = None, queued: int | None = None) -> None:
        """So many hold GPUs or run, so many wait."""

        def fits() -> bool:
            with self.client() as client:
                queue = client.queue()
            return running in (None, len(queue.running)) and queued in (None, len(queue.queued))

        until(fits, f"running {running}, queued {queued}")

    def file(self, name: str, text: str) -> str:
        (self.home / name).write_text(text)
        return name
