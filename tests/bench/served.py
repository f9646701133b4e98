"""A real `rota serve` for the benchmarks, and the least client there can be: prepared bytes over plain sockets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EMPTY = """
import sys
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
app = FastAPI()
class Job(BaseModel):
    run_id: str
    user: str
    command: str
    gpu_count: int
@app.post("/queue/submit")
async def submit(job: Job) -> dict[str, bool]:
    return {"success": True}
uvicorn.run(app, port=int(sys.argv[1]), loop="uvloop", http="httptools", log_level="error", access_log=False)
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Served:
    def __init__(self, where: Path, nodes: int, gpus: int, env: Mapping[str, str]) -> None:
        self.data = where / "data"
        self.port, self.lease_port = free_port(), free_port()
        self._shape = (nodes, gpus)
        self._env = {**os.environ, "RESEARCH_AGENT_MAX_QUEUE_SIZE": "200000", **env}
        self._log = open(where / "server.log", "ab")  # noqa: SIM115 - closed in stop()
        self.start()

    def start(self) -> None:
        nodes, gpus = self._shape
        argv = [sys.executable, "-m", "rota", "serve", "--port", str(self.port), "--lease-port", str(self.lease_port)]
        argv += ["--data-dir", str(self.data), "--nodes", str(nodes), "--gpus", str(gpus), "--workdir", "/tmp"]
        self.process = subprocess.Popen(argv, env=self._env, stdout=self._log, stderr=self._log)
        wait_for(self.port, "/readyz", self.process)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()
        self._log.close()

    def call(self, method: str, path: str, body: Any = None, port: int | None = None) -> Any:
        return json.loads(call(port or self.port, method, path, body))

    def rss_mb(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no VmRSS")

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(nodes: int = 2, gpus: int = 8, env: Mapping[str, str] | None = None) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="rota-bench-", dir="/var/tmp", ignore_cleanup_errors=True) as where:
        server = Served(Path(where), nodes, gpus, env or {})
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def empty_route() -> Iterator[int]:
    """A FastAPI route that does nothing, on the same server software: the limit of any door."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", EMPTY, str(port)])
    try:
        wait_for(port, "/openapi.json", process)
        yield port
    finally:
        process.terminate()
        process.wait()


def wait_for(port: int, path: str, process: subprocess.Popen[Any], within_s: float = 60.0) -> None:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            call(port, "GET", path)
            return
        except OSError:
            time.sleep(0.02)
    raise TimeoutError(f"port {port} does not answer")


def request(method: str, path: str, body: Any = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    if content:
        head += "Content-Type: application/json\r\n"
    return head.encode() + b"\r\n" + content


def call(port: int, method: str, path: str, body: Any = None) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(request(method, path, body))
        file = one.makefile("rb")
        status, content = read(file.readline, file.read)
    if status != 200:
        raise OSError(f"{method} {path}: {status} {content[:300]!r}")
    return content


def read(readline: Callable[[], bytes], take: Callable[[int], bytes]) -> tuple[int, bytes]:
    first = readline()
    if not first:
        raise ConnectionError("closed")
    length = 0
    while (line := readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return int(first.split()[1]), take(length)


async def pump(port: int, requests: Sequence[bytes], connections: int) -> tuple[list[float], list[bytes]]:
    """Send all, `connections` at a time, each waiting for its answer: how long each took, and the answers."""
    queue = iter(requests)
    took: list[float] = []
    answers: list[bytes] = []

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for wanted in queue:
            begun = time.perf_counter()
            writer.write(wanted)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            answer = await reader.readexactly(length)
            took.append(time.perf_counter() - begun)
            if not head.startswith(b"HTTP/1.1 200"):
                raise OSError(f"{head[:100]!r} {answer[:300]!r}")
            answers.append(answer)
        writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return took, answers


def pumped(port: int, requests: Sequence[bytes], connections: int = 16) -> tuple[float, list[float], list[bytes]]:
    """Requests a second, how long each took, the answers."""
    import uvloop

    begun = time.perf_counter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        took, answers = runner.run(pump(port, requests, connections))
    return len(requests) / (time.perf_counter() - begun), took, answers
