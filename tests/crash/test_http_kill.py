"""kill -9 of the server under HTTP load, again and again: nothing acknowledged is lost or doubled, leases stay, and
watchers go on without a gap or a repeat."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.house import PATIENCE_S, until
from tests.doors.server import Server

ROUNDS = 2
CLIENTS = 8


class Load:
    """Clients that send a job under a key until they are told that it was taken in."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.taken: dict[str, str] = {}  # key -> job id, as acknowledged
        self.moved: dict[str, int] = {}  # job id -> priority, as acknowledged
        self.gone: set[str] = set()  # cancelled, as acknowledged
        self.stopping = False
        self.repeats = 0

    async def run(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(CLIENTS)))

    async def _client(self, number: int) -> None:
        count = 0
        while not self.stopping:
            key = f"client {number} job {count}"
            count += 1
            body = {"run_id": key, "user": f"user{number}", "command": "exec sleep 100000", "gpu_count": 1}
            job_id = (await self._insist("POST", "/queue/submit", body, key))["job_id"]
            self.taken[key] = job_id
            if count % 3 == 0:
                await self._insist("PATCH", f"/queue/{job_id}/priority", {"priority": 3}, may=(404,))
                self.moved[job_id] = 3
            if count % 5 == 0:
                await self._insist("DELETE", f"/queue/{job_id}", None, may=(404,))
                self.gone.add(job_id)

    async def _insist(self, method: str, path: str, body: Any, key: str = "", may: tuple[int, ...] = ()) -> Any:
        until_then = time.monotonic() + 2 * PATIENCE_S
        while True:
            try:
                status, answer = await exchange(self.server.port, method, path, body, key)
            except (OSError, EOFError, ValueError):
                assert time.monotonic() < until_then, "the server does not come back"
                self.repeats += 1
                await asyncio.sleep(0.05)
                continue
            if status == 200 or status in may:
                return answer
            assert status in (429, 503), f"{status}: {answer}"
            await asyncio.sleep(0.05)


async def exchange(port: int, method: str, path: str, body: Any, key: str = "") -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(content)}\r\n"
        head += "Content-Type: application/json\r\n" + (f"Idempotency-Key: {key}\r\n" if key else "")
        writer.write(head.encode() + b"\r\n" + content)
        first = await reader.readuntil(b"\r\n\r\n")
        length = int(first.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        answer = await reader.readexactly(length)
    finally:
        writer.close()
    return int(first.split()[1]), json.loads(answer)


class Watcher:
    """Reads /events, and comes back with the id of the last it has whenever the line breaks."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.seqs: list[int] = []
        self.returns = 0

    async def run(self) -> None:
        while True:
            try:
                await self._read()
            except (OSError, EOFError):
                self.returns += 1
            await asyncio.sleep(0.02)

    async def _read(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, limit=1 << 22)
        try:
            place = f"Last-Event-ID: {self.seqs[-1]}\r\n" if self.seqs else ""
            query = "" if self.seqs else "?after=0"
            writer.write(f"GET /events{query} HTTP/1.1\r\nHost: localhost\r\n{place}\r\n".encode())
            while line := await reader.readline():
                if line.startswith(b"id: "):
                    self.seqs.append(int(line[4:]))
        finally:
            writer.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    env = {"RESEARCH_AGENT_MAX_QUEUE_SIZE": "100000"}
    with Server(tmp_path, nodes=1, gpus=4, env=env) as server:
        yield server


def test_kill_under_load(server: Server) -> None:
    holder = subprocess.Popen(["sleep", "100000"])
    try:
        lease = server.post("/acquire", {"pid": holder.pid, "num_gpus": 2}, lease=True).ok()
        load, watchers = Load(server), [Watcher(server), Watcher(server)]
        asyncio.run(_storm(server, load, watchers))
        _nothing_lost(server, load)
        jobs = {job["id"]: job for job in server.get("/jobs", lease=True).ok()}
        assert jobs[lease["job_id"]]["status"] == "running"
        assert ",".join(map(str, jobs[lease["job_id"]]["gpus"])) == lease["gpus"]
        for watcher in watchers:
            assert watcher.returns >= ROUNDS
            assert watcher.seqs == list(range(1, len(watcher.seqs) + 1))
        assert load.repeats > 0
    finally:
        holder.kill()
        holder.wait()
    until(lambda: lease["job_id"] in _done(server), "the lease ends with its process")


async def _storm(server: Server, load: Load, watchers: list[Watcher]) -> None:
    chance = random.Random(os.environ.get("ROTA_SEED", "1"))
    watching = [asyncio.create_task(watcher.run()) for watcher in watchers]
    clients = asyncio.create_task(load.run())
    for _ in range(ROUNDS):
        before = len(load.taken)
        while len(load.taken) < before + 20:
            assert not clients.done() or clients.result() is None
            await asyncio.sleep(0.02)
        await asyncio.sleep(chance.uniform(0, 0.3))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    load.stopping = True
    await clients
    await _caught_up(watchers)
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)


async def _caught_up(watchers: list[Watcher]) -> None:
    still, until_then = -1, time.monotonic() + PATIENCE_S
    while True:
        heard = [watcher.seqs[-1] for watcher in watchers]
        if len(set(heard)) == 1 and heard[0] == still:
            return
        assert time.monotonic() < until_then, f"they differ: {heard}"
        still = heard[0]
        await asyncio.sleep(0.5)


def _nothing_lost(server: Server, load: Load) -> None:
    ids = list(load.taken.values())
    assert len(set(ids)) == len(ids), "two keys got one job"
    runs: dict[str, Any] = {}
    cursor = ""
    while True:
        answer = server.get(f"/runs?limit=1000{cursor}")
        runs |= {run["id"]: run for run in answer.ok()}
        if "x-next-cursor" not in answer.headers:
            break
        cursor = f"&cursor={answer.headers['x-next-cursor']}"
    names = [run["name"] for run in runs.values() if run["name"].startswith("client ")]
    assert len(set(names)) == len(names), "one key made two jobs"
    lost = [key for key, job_id in load.taken.items() if job_id not in runs]
    assert not lost, f"acknowledged and gone: {lost}"
    for job_id in load.gone:
        assert runs[job_id]["status"] in ("stopped", "running", "launching"), "a cancel was forgotten"
        until(lambda job_id=job_id: server.job(job_id)["state"] == "canceled", f"{job_id} is cancelled")  # type: ignore[misc]
    for job_id, priority in load.moved.items():
        assert runs[job_id]["priority"] == priority or runs[job_id]["status"] != "queued"


def _done(server: Server) -> set[str]:
    return {job["id"] for job in server.get("/jobs", lease=True).ok() if job["status"] == "done"}
