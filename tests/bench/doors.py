"""Rows 1 to 4 and 8 over HTTP, the lease door, the command line and a thousand watchers: all of it through a real
`rota serve`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.dispatch import _opened, _popen_rate, _signalled, raw_commits
from tests.bench.served import Served, empty_route, pumped, request, served
from tests.bench.table import Row, percentile, verdict

BLOCKS = 10
PAUSED = {"RESEARCH_AGENT_GPU_ORCHESTRATION_ENABLED": "false"}


def job(command: str = "true", gpus: int = 1) -> dict[str, Any]:
    return {"run_id": "bench", "user": "bench", "command": command, "gpu_count": gpus, "estimated_duration_seconds": 1}


def submits(scale: float) -> list[Row]:
    """Row 1, and then kill -9: what was acknowledged must be there. In blocks, by turns with the empty route:
    what else goes on on the machine then meets both."""
    block = [request("POST", "/queue/submit", job())] * max(100, int(1000 * scale))
    mine, theirs, busy, answers = [], [], [], []
    with empty_route() as port, served(env=PAUSED) as server:
        for one in (port, server.port):
            pumped(one, block)
        for _ in range(BLOCKS):
            theirs.append(pumped(port, block)[0])
            rate, took, got = pumped(server.port, block)
            mine.append(rate)
            busy += took
            answers += got
        alone, bare = (percentile(pumped(one, block, 1)[1], 0.5) * 1e3 for one in (server.port, port))
        server.kill()
        server.start()
        there = {run["id"] for run in server.call("GET", "/queue")["queued"]}
        lost = sum(json.loads(one)["job_id"] not in there for one in answers)
        raw = raw_commits(server.data.parent)
    rate, ratio = median(mine), median(one / other for one, other in zip(mine, theirs, strict=True))
    return [
        Row(
            "1",
            f"{BLOCKS * len(block):,} durable POST /queue/submit, 16 connections",
            f"{rate:,.0f}/s, {percentile(busy, 0.5) * 1e3:.1f} ms (p99 {percentile(busy, 0.99) * 1e3:.1f})",
            f"empty FastAPI route {median(theirs):,.0f}/s; raw one-row commits {raw:,.0f}/s",
            f"{ratio:.2f}x of the empty route",
            "2,000/s or 0.5x",
            "5,000/s",
            verdict(max(rate, 2000 * ratio / 0.5), 2000, 5000, more_is_better=True),
        ),
        Row(
            "1",
            "one connection: p50 beyond the empty route's",
            f"{alone - bare:.2f} ms",
            f"empty route {bare:.2f} ms",
            f"{alone / bare:.1f}x",
            "1 ms",
            "-",
            verdict(alone - bare, 1, None, more_is_better=False),
        ),
        Row("1", "the same, then kill -9 and start: lost", str(lost), "-", "-", "0", "0", "below" if lost else "goal"),
    ]


def first_line(scale: float) -> list[Row]:
    count = max(20, int(300 * scale))
    took = []
    with served() as server:
        fifo = server.data.parent / "fifo"
        _opened(fifo)
        wanted = request("POST", "/queue/submit", job(f"echo x; echo x > {fifo}"))
        connection = _Connection(server.port)
        for _ in range(count):
            begun = time.perf_counter()
            connection.send(wanted)
            _signalled(fifo)
            took.append(time.perf_counter() - begun)
            _idle(server)
    mine = percentile(took, 0.5) * 1e3
    return [
        Row(
            "3",
            "idle cluster, HTTP submit to the job's first line, p50 (p99)",
            f"{mine:.2f} ms ({percentile(took, 0.99) * 1e3:.1f})",
            "see the Slurm rows",
            "-",
            "20 ms",
            "3 ms",
            verdict(mine, 20, 3, more_is_better=False),
        )
    ]


class _Connection:
    def __init__(self, port: int) -> None:
        import socket

        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def send(self, wanted: bytes) -> bytes:
        from tests.bench.served import read

        self._socket.sendall(wanted)
        status, body = read(self._file.readline, self._file.read)
        assert status == 200, body
        return body


def _idle(server: Served) -> None:
    while server.call("GET", "/wild/v2/system-health")["running"]:
        time.sleep(0.001)


def drain_rate(server: Served, total: int) -> float:
    """Jobs a second from the moment scheduling is switched on to the moment the last end is durable."""
    pumped(server.port, [request("POST", "/queue/submit", job())] * total)
    done_before = server.call("GET", "/wild/v2/system-health")["completed"]
    begun = time.perf_counter()
    server.call("POST", "/orchestrator/start")
    while server.call("GET", "/wild/v2/system-health")["completed"] - done_before < total:
        time.sleep(0.02)
    return total / (time.perf_counter() - begun)


def drain(scale: float) -> list[Row]:
    total = int(5000 * scale)
    with served(env=PAUSED) as server:
        rate = drain_rate(server, total)
        bare = _popen_rate(server.data.parent, total // 2)
    return [
        Row(
            "4",
            f"{total:,} x `true` by HTTP on 16 slots, every transition durable",
            f"{rate:,.0f} jobs/s",
            f"Popen with log files, 16 at a time {bare:,.0f}/s",
            f"{rate / bare:.2f}x",
            "300/s",
            "900/s",
            verdict(rate, 300, 900, more_is_better=True),
        )
    ]


def queue(scale: float) -> list[Row]:
    """Row 8: the whole queue of 10,000, for 20 dashboards, with one change a second."""
    waiting = int(10_000 * scale)
    with served(env=PAUSED) as server:
        pumped(server.port, [request("POST", "/queue/submit", job())] * waiting)
        took, idle = asyncio.run(_dashboards(server, 20, 10.0 * max(scale, 0.3)))
    p99 = percentile(took, 0.99) * 1e3
    return [
        Row(
            "8",
            f"GET /queue of {waiting:,}, 20 dashboards at 1/s, 1 change/s, p99 (p50)",
            f"{p99:.1f} ms ({percentile(took, 0.5) * 1e3:.1f})",
            f"{len(took)} reads",
            "-",
            "100 ms",
            "30 ms",
            verdict(p99, 100, 30, more_is_better=False),
        ),
        Row(
            "8",
            "server CPU, idle",
            f"{idle * 100:.1f} %",
            "-",
            "-",
            "-",
            "1 %",
            verdict(idle, 1, 0.01, more_is_better=False),
        ),
    ]


async def _dashboards(server: Served, count: int, seconds: float) -> tuple[list[float], float]:
    took: list[float] = []
    until = time.monotonic() + seconds
    wanted = request("GET", "/queue")

    async def dashboard(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 26)
        await asyncio.sleep(number / count)
        while time.monotonic() < until:
            begun = time.perf_counter()
            writer.write(wanted)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
            took.append(time.perf_counter() - begun)
            await asyncio.sleep(max(0.0, 1.0 - (time.perf_counter() - begun)))
        writer.close()

    async def change() -> None:
        while time.monotonic() < until:
            await asyncio.to_thread(server.call, "POST", "/queue/submit", job())
            await asyncio.sleep(1.0)

    await asyncio.gather(change(), *(dashboard(number) for number in range(count)))
    before = server.cpu_s()
    await asyncio.sleep(5.0)
    return took, (server.cpu_s() - before) / 5.0


def leases(scale: float) -> list[Row]:
    """Grant on a free GPU; and from a holder's death to the next one's grant."""
    count = max(20, int(300 * scale))
    granted, handed = [], []
    with served(nodes=1, gpus=1) as server:
        connection = _Connection(server.lease_port)
        for _ in range(count):
            holder = subprocess.Popen(["sleep", "600"])
            wanted = request("POST", "/acquire", {"pid": holder.pid, "num_gpus": 1})
            begun = time.perf_counter()
            connection.send(wanted)
            granted.append(time.perf_counter() - begun)
            holder.kill()
            holder.wait()
            _free(server)
        for _ in range(count):
            handed.append(_hand_over(server))
    p50, p99 = percentile(granted, 0.5) * 1e3, percentile(handed, 0.99) * 1e3
    return [
        Row(
            "-",
            "/acquire on a free GPU, p50 (p99)",
            f"{p50:.2f} ms ({percentile(granted, 0.99) * 1e3:.1f})",
            "-",
            "-",
            "5 ms",
            "-",
            verdict(p50, 5, None, more_is_better=False),
        ),
        Row(
            "-",
            "a holder's death to the waiter's grant, p99 (p50)",
            f"{p99:.2f} ms ({percentile(handed, 0.5) * 1e3:.2f})",
            "-",
            "-",
            "50 ms",
            "-",
            verdict(p99, 50, None, more_is_better=False),
        ),
    ]


def _free(server: Served) -> None:
    while server.call("GET", "/status", port=server.lease_port)["gpus_allocated"]:
        time.sleep(0.001)


def _hand_over(server: Served) -> float:
    import threading

    first, second = subprocess.Popen(["sleep", "600"]), subprocess.Popen(["sleep", "600"])
    server.call("POST", "/acquire", {"pid": first.pid}, server.lease_port)
    at: list[float] = []

    def wait() -> None:
        server.call("POST", "/acquire", {"pid": second.pid}, server.lease_port)
        at.append(time.perf_counter())

    waiter = threading.Thread(target=wait)
    waiter.start()
    while server.call("GET", "/status", port=server.lease_port)["jobs_queued"] != 1:
        time.sleep(0.001)
    begun = time.perf_counter()
    first.kill()
    waiter.join()
    second.kill()
    first.wait()
    second.wait()
    _free(server)
    return at[0] - begun


def command_line(scale: float) -> list[Row]:
    """Row 2 and the other commands, cold: a process each."""
    count = max(5, int(40 * scale))
    rota = str(Path(sys.executable).with_name("rota"))
    with served(env=PAUSED) as server:
        env = {**os.environ, "ROTA_URL": f"http://127.0.0.1:{server.port}"}

        def took(*argv: str) -> float:
            def once(command: tuple[str, ...]) -> float:
                begun = time.perf_counter()
                subprocess.run(command, env=env, check=True, capture_output=True, cwd="/tmp")
                return (time.perf_counter() - begun) * 1e3

            once(argv)
            return percentile([once(argv) for _ in range(count)], 0.5)

        bare = took(sys.executable, "-c", "import click")
        version, submit = took(rota, "--version"), took(rota, "submit", "-G", "1", "--", "true")
        queue_ms = took(rota, "queue")
    peer = f"python -c 'import click' {bare:.0f} ms"
    return [
        _command("2", "one CLI submit, cold, p50", submit, bare, peer, 100, 45),
        _command("-", "rota --version, p50", version, bare, peer, 100, None),
        _command("-", "rota queue, p50", queue_ms, bare, peer, 250, None),
    ]


def _command(  # noqa: PLR0917
    number: str, what: str, ms: float, bare: float, peer: str, goal: float, moonshot: float | None
) -> Row:
    far = "-" if moonshot is None else f"{moonshot:g} ms"
    reached = verdict(ms, goal, moonshot, more_is_better=False)
    return Row(number, what, f"{ms:.0f} ms", peer, f"{ms / bare:.1f}x", f"{goal:g} ms", far, reached)


def watchers(scale: float) -> list[Row]:
    """A thousand WebSockets: how late the last of them hears of each event, and what they cost."""
    count, events = max(50, int(1000 * scale)), 50
    with served(env=PAUSED) as server:
        before = server.rss_mb()
        late, heard = asyncio.run(_watch(server, count, events))
        grown = server.rss_mb() - before
    worst = max(late)
    return [
        Row(
            "-",
            f"{count:,} WebSocket watchers, {events} events: the last one hears, worst (p50)",
            f"{worst:.2f} s ({percentile(late, 0.5):.2f})",
            f"{heard:,} messages, none lost or repeated",
            "-",
            "2 s",
            "-",
            verdict(worst, 2, None, more_is_better=False),
        ),
        Row(
            "-",
            "the same: RSS growth",
            f"{grown:.0f} MB",
            "-",
            "-",
            "200 MB",
            "-",
            verdict(grown, 200, None, more_is_better=False),
        ),
    ]


async def _watch(server: Served, count: int, events: int) -> tuple[list[float], int]:
    from websockets.asyncio.client import connect

    last: dict[int, float] = {}
    sockets = []
    for _ in range(count):
        sockets.append(await connect(f"ws://127.0.0.1:{server.port}/ws", compression=None, ping_interval=None))
    heard = [0]

    async def listen(socket: Any) -> None:
        expected: int = json.loads(await socket.recv())["seq"] + 1  # it says first where "from now on" begins
        for _ in range(events):
            message = json.loads(await socket.recv())
            seq = message["seq"]
            assert seq == expected, f"{seq} after {expected}"
            expected = seq + 1
            last[seq] = time.perf_counter()
            heard[0] += 1

    tasks = [asyncio.create_task(listen(socket)) for socket in sockets]
    sent: list[float] = []
    for _ in range(events):
        sent.append(time.perf_counter())
        await asyncio.to_thread(server.call, "POST", "/queue/submit", job())
        await asyncio.sleep(0.1)
    await asyncio.gather(*tasks)
    for socket in sockets:
        await socket.close()
    late = [last[seq] - at for seq, at in zip(sorted(last), sent, strict=True)]
    return late, heard[0]
