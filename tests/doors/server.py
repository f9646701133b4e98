"""A real `rota serve`: a process of its own, private ports, a private data directory, and the real curl to talk to it.

At the end it is stopped by its pid, and what it left is opened once more and judged as every house is: no process left
over, no GPU held by nobody, rows and events in agreement.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.app.house import PATIENCE_S, SOURCES, House, until

PROGRAM = [sys.executable, "-c", "from rota.cli.start import main; main()"]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # names in small letters
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def ok(self) -> Any:
        """The JSON of an answer that must be a success."""
        assert self.status == 200, f"{self.status}: {self.body[:2000]!r}"
        return self.json


class Server:
    """`with Server(path) as server:`; `start`, `stop` and `kill` may be called as often as a test likes."""

    def __init__(
        self,
        where: Path,
        *,
        nodes: int = 2,
        gpus: int = 8,
        env: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
        descriptors: int = 0,
    ) -> None:
        self.where = where
        self.house = House(where / "house", nodes, gpus)  # opened only at the end, to judge
        self.data = self.house.data
        self.log = where / "server.log"
        self.port, self.lease_port = ports = HeldPorts(2)
        weakref.finalize(self, ports.close)
        self.url, self.lease_url = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.lease_port}"
        self.token: str | None = None  # sent with every call
        self.argv = [*PROGRAM, "serve", "--host", "127.0.0.1", "--port", str(self.port)]
        self.argv += ["--lease-port", str(self.lease_port), "--data-dir", str(self.data), "--workdir", str(where)]
        self.argv += ["--nodes", str(nodes), "--gpus", str(gpus), *flags]
        if descriptors:  # how many it may have open, and cannot raise
            self.argv = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *self.argv]
        # a low floor, because what is set aside for a full disk goes by it, and is written at each start
        floor = {"ROTA_DISK_FLOOR_MB": "16"}
        self.env = {"PATH": os.environ["PATH"], "HOME": str(where), "PYTHONPATH": SOURCES, **floor, **(env or {})}
        self.pass_fds: tuple[int, ...] = ()  # descriptors that it is to have
        self.process: subprocess.Popen[bytes] | None = None

    # -- its life ---------------------------------------------------------------------------------------------------
    def start(self) -> Server:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                env=self.env,
                cwd=self.where,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self.pass_fds,
            )
        until(self._ready, "the server is ready")
        return self

    def _ready(self) -> bool:
        self.must_live()
        # A process for each look would take more of the processor than the start of the server.
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", self.port)) != 0:
                return False
        return curl(f"{self.url}/readyz", may_fail=True).status == 200

    def must_live(self) -> None:
        """Say how it ended and what it said last, if it ended and no test asked it to."""
        if self.process is not None and self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}: {self.said()[-4000:]}")

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self) -> int:
        """As a person would: politely. Its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As the power would."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        return process.wait(PATIENCE_S)

    def finish(self) -> None:
        code = self.stop()
        if self.data.exists():
            self.house.finish()
        said = self.said()
        assert "Traceback" not in said, said
        assert code == 0, f"it ended with {code}: {said}"

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.finish()

    # -- talking to it ----------------------------------------------------------------------------------------------
    def call(
        self, method: str, path: str, body: Any = None, *, lease: bool = False, headers: Sequence[str] = ()
    ) -> Answer:
        """`body`: bytes as they are, anything else as JSON."""
        self.must_live()
        known = [f"X-Auth-Token: {self.token}"] if self.token is not None else []
        url = (self.lease_url if lease else self.url) + path
        return curl(url, method=method, body=body, headers=[*known, *headers])

    def get(self, path: str, **more: Any) -> Answer:
        return self.call("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> Answer:
        return self.call("POST", path, body, **more)

    def put(self, path: str, body: Any = None, **more: Any) -> Answer:
        return self.call("PUT", path, body, **more)

    def patch(self, path: str, body: Any = None, **more: Any) -> Answer:
        return self.call("PATCH", path, body, **more)

    def delete(self, path: str, **more: Any) -> Answer:
        return self.call("DELETE", path, **more)

    # -- what many tests do -----------------------------------------------------------------------------------------
    def submit(self, command: str, gpus: int = 1, **more: Any) -> str:
        """A job through the queue door; its id."""
        body = {"run_id": "label", "user": "ann", "command": command, "gpu_count": gpus, **more}
        answer: str = self.post("/queue/submit", body).ok()["job_id"]
        return answer

    def sleeper(self, gpus: int = 1, **more: Any) -> str:
        return self.submit("exec sleep 100000", gpus, **more)

    def job(self, job_id: str) -> Any:
        return self.get(f"/queue/{job_id}").ok()

    def in_state(self, job_id: str, *states: str) -> Any:
        """The job, once it is so."""
        until(lambda: self.job(job_id)["state"] in states, f"{job_id} is {states}")
        return self.job(job_id)


def curl(
    url: str,
    *,
    method: str = "GET",
    body: Any = None,
    headers: Sequence[str] = (),
    options: Sequence[str] = (),
    may_fail: bool = False,
) -> Answer:
    """Status 0 = nobody answered, where that `may_fail`."""
    argv = ["curl", "-sS", "-i", "--max-time", str(PATIENCE_S), "-X", method, *options]
    content = b""
    if body is not None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        argv += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
    for header in headers:
        argv += ["-H", header]
    done = subprocess.run([*argv, url], input=content, capture_output=True, check=False)
    if done.returncode != 0:
        assert may_fail, f"curl {url}: {done.stderr.decode()}"
        return Answer(0, {}, b"")
    return parse(done.stdout)


def parse(text: bytes) -> Answer:
    while True:  # an interim "100 Continue" comes before the answer
        head, _, body = text.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        status = int(first.split()[1])
        if status >= 200:
            break
        text = body
    pairs = (line.partition(":") for line in lines)
    return Answer(status, {name.lower(): value.strip() for name, _, value in pairs}, body)


class HeldPorts:
    """Numbers of ports that nobody else gets before `close`, and that a server can listen on, again and again.

    A socket that may share its address and does not listen keeps a port: the kernel gives it to nobody who asks for any
    port, and lets a server have it that asks for this one. (A port that is only looked up may be another's by the time
    the server has started.)
    """

    def __init__(self, count: int) -> None:
        self._sockets = [socket.socket() for _ in range(count)]
        for one in self._sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 0))

    def __iter__(self) -> Iterator[int]:
        return (one.getsockname()[1] for one in self._sockets)

    def close(self) -> None:
        for one in self._sockets:
            one.close()
