"""Rows 1, 3, 4, 5, 9: the service with its real store and its real processes, without HTTP."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rota.app.authz import Principal, Role
from rota.app.commands import Pause, Resume, SetPolicy, Submit
from rota.app.service import Service
from rota.config import Settings
from rota.core import events as e
from rota.core.policy import Policy
from rota.core.resources import Request
from rota.core.run import Spec
from rota.main import open_rota
from tests.bench.table import Row, percentile, verdict

ADMIN = Principal("bench", Role.ADMIN)


def spec(*argv: str, gpus: int = 1, workdir: str = "/tmp") -> Spec:
    return Spec(name="bench", argv=argv, workdir=workdir, request=Request(gpus=gpus), estimate_s=1.0, grace_s=1.0)


@contextmanager
def house(nodes: int = 2, gpus: int = 8) -> Iterator[tuple[Service, Path]]:
    with (
        tempfile.TemporaryDirectory(prefix="rota-bench-", dir="/var/tmp") as where,
        open_rota(Settings(Path(where) / "data", simulated=(nodes, gpus), probe_every_s=3600)) as rota,
    ):
        yield rota.service, Path(where)


def raw_commits(where: Path, seconds: float = 1.0, rows: int = 1) -> float:
    """Commits a second of one row each on SQLite WAL FULL: the limit of storing submits one by one."""
    db = sqlite3.connect(where / "raw.db", isolation_level=None)
    db.executescript(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t (id INTEGER PRIMARY KEY, body TEXT)"
    )
    body = "x" * 300
    count = 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        db.execute("BEGIN IMMEDIATE")
        for _ in range(rows):
            db.execute("INSERT INTO t (body) VALUES (?)", (body,))
        db.execute("COMMIT")
        count += rows
    rate = count / (time.perf_counter() - begun)
    db.close()
    return rate


def submits(scale: float) -> list[Row]:
    total, callers = int(20_000 * scale), 64
    with house() as (service, where):
        service.do(ADMIN, Pause())
        one = spec("true")

        def caller() -> None:
            for _ in range(total // callers):
                service.do(ADMIN, Submit(one))

        threads = [threading.Thread(target=caller) for _ in range(callers)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rate = total // callers * callers / (time.perf_counter() - begun)
        raw = raw_commits(where)
    return [
        Row(
            "1",
            f"{total:,} durable submits, {callers} callers, SQLite FULL",
            f"{rate:,.0f}/s",
            f"raw one-row commits {raw:,.0f}/s",
            f"{rate / raw:.2f}x",
            "2,000/s",
            "5,000/s",
            verdict(rate, 2000, 5000, more_is_better=True),
        )
    ]


def _signalled(fifo: Path) -> int:
    """Block until a job has written to the FIFO: no polling, which would take the CPU from what is measured."""
    return len(os.read(_opened(fifo), 64))


_FDS: dict[Path, int] = {}


def _opened(fifo: Path) -> int:
    if fifo not in _FDS:
        os.mkfifo(fifo)
        _FDS[fifo] = os.open(fifo, os.O_RDWR)
    return _FDS[fifo]


def first_line(scale: float) -> list[Row]:
    count = max(20, int(300 * scale))
    ours, peer = [], []
    with house() as (service, where):
        fifo = where / "fifo"
        _opened(fifo)
        line = ("/bin/sh", "-c", f"echo x; echo x > {fifo}")
        for number in range(count):
            begun = time.perf_counter()
            run = service.do(ADMIN, Submit(spec(*line)))
            _signalled(fifo)
            ours.append(time.perf_counter() - begun)
            service.wait(run.id)
            begun = time.perf_counter()
            with open(where / f"log{number}", "ab") as log:
                child = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True, cwd="/tmp")
            _signalled(fifo)
            peer.append(time.perf_counter() - begun)
            child.wait()
    mine, bare = percentile(ours, 0.5) * 1e3, percentile(peer, 0.5) * 1e3
    return [
        Row(
            "3",
            "idle cluster, submit to the first line, p50 (p99)",
            f"{mine:.2f} ms ({percentile(ours, 0.99) * 1e3:.1f})",
            f"bare Popen with a log file {bare:.2f} ms ({percentile(peer, 0.99) * 1e3:.1f})",
            f"{mine / bare:.1f}x",
            "20 ms",
            "3 ms",
            verdict(mine, 20, 3, more_is_better=False),
        )
    ]


def _ended_counter(service: Service, total: int) -> threading.Event:
    left = [total]
    done = threading.Event()

    def count(first: int, events: Sequence[e.Event]) -> None:
        left[0] -= sum(isinstance(event, e.AttemptEnded) for event in events)
        if left[0] <= 0:
            done.set()

    service.subscribe(count)
    return done


def drain(scale: float) -> list[Row]:
    total = int(5000 * scale)
    with house() as (service, where):
        service.do(ADMIN, Pause())
        for sent in [service.send(ADMIN, Submit(spec("true"))) for _ in range(total)]:
            sent.result()
        done = _ended_counter(service, total)
        begun = time.perf_counter()
        service.do(ADMIN, Resume())
        done.wait()
        rate = total / (time.perf_counter() - begun)
        bare = _popen_rate(where, total // 2)
    return [
        Row(
            "4",
            f"{total:,} x `true` on 16 slots, every transition durable",
            f"{rate:,.0f} jobs/s",
            f"Popen with log files, 16 at a time {bare:,.0f}/s",
            f"{rate / bare:.2f}x",
            "300/s",
            "900/s",
            verdict(rate, 300, 900, more_is_better=True),
        )
    ]


def _popen_rate(where: Path, total: int) -> float:
    begun = time.perf_counter()
    running: list[subprocess.Popen[bytes]] = []
    for number in range(total):
        if len(running) == 16:
            running.pop(0).wait()
        with open(where / f"p{number}", "ab") as log:
            running.append(subprocess.Popen(["true"], stdout=log, stderr=log, start_new_session=True, cwd="/tmp"))
    for child in running:
        child.wait()
    return total / (time.perf_counter() - begun)


def refill(scale: float) -> list[Row]:
    """With 1,000 waiting: from a job's last act to the next job's first line."""
    count = max(50, int(1000 * scale))
    with house(nodes=1, gpus=1) as (service, where):
        fifo, last = where / "fifo", where / "last"
        _opened(fifo)
        service.do(ADMIN, Pause())
        # the last act of a job is to leave the time; date runs before it ends, which counts against us
        line = ("/bin/sh", "-c", f"echo x; date +%s%N > {fifo}; exec date +%s%N > {last}.$ROTA_JOB_ID")
        sent = [service.send(ADMIN, Submit(spec(*line))) for _ in range(count + 1000)]
        ids = [each.result().id for each in sent]
        service.do(ADMIN, Resume())
        first = [int(_line(fifo)) for _ in range(count + 1)]
        service.do(ADMIN, Pause())
        delays = [(first[n + 1] - int(Path(f"{last}.{ids[n]}").read_text())) / 1e9 for n in range(count)]
    p99 = percentile(delays, 0.99) * 1e3
    return [
        Row(
            "5",
            "one job's last act to the next job's first line, 1,000 queued, p99 (p50)",
            f"{p99:.1f} ms ({percentile(delays, 0.5) * 1e3:.2f})",
            "-",
            "-",
            "50 ms",
            "5 ms",
            verdict(p99, 50, 5, more_is_better=False),
        )
    ]


def _line(fifo: Path) -> str:
    return os.read(_opened(fifo), 64).decode()


def preempt(scale: float) -> list[Row]:
    """A full node, a victim that leaves at once: until the first line of the urgent run."""
    count = max(5, int(50 * scale))
    delays = []
    with house(nodes=1, gpus=8) as (service, where):
        fifo = where / "fifo"
        _opened(fifo)
        service.do(ADMIN, SetPolicy(Policy(preemption=True)))
        victim = replace(spec("/bin/sleep", "600", gpus=8), preemptible=True, priority=1)
        low = service.do(ADMIN, Submit(victim))
        for _ in range(count):
            while service.run(low.id).state != "running":
                time.sleep(0.005)
            begun = time.perf_counter()
            line = ("/bin/sh", "-c", f"echo x; echo x > {fifo}")
            high = service.do(ADMIN, Submit(replace(spec(*line, gpus=8), priority=4)))
            _signalled(fifo)
            delays.append(time.perf_counter() - begun)
            service.wait(high.id)
        service.do(ADMIN, Pause())
        from rota.app.commands import Cancel

        service.do(ADMIN, Cancel(low.id, grace_s=0))
        service.wait(low.id)
    p50 = percentile(delays, 0.5) * 1e3
    return [
        Row(
            "9",
            "urgent run on a full node, victim leaves at once: to its first line, p50 (p99)",
            f"{p50:.1f} ms ({percentile(delays, 0.99) * 1e3:.1f})",
            "-",
            "-",
            "50 ms",
            "10 ms",
            verdict(p50, 50, 10, more_is_better=False),
        )
    ]
