"""Row 7 and the server's memory: 100,000 runs on disk, kill -9, start again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rota.adapters.clock import SystemClock
from rota.adapters.store.open import open_store
from rota.core import events as e
from rota.core.node import simulated_cluster
from rota.core.reduce import reduce
from rota.core.resources import Request
from rota.core.run import Cause, Exit, RunState, Spec
from rota.core.state import State
from tests.bench.table import Row, verdict

ROOT = Path(__file__).parent.parent.parent

SERVER = """
import json, sys, time
begun = time.perf_counter()
from pathlib import Path
from rota.app.authz import Principal, Role
from rota.app.commands import Submit
from rota.config import Settings
from rota.core.resources import Request
from rota.core.run import Spec
from rota.main import open_rota
imported = time.perf_counter()
me = Principal("bench", Role.ADMIN)
with open_rota(Settings(Path(sys.argv[1]), simulated=(2, 8))) as rota:
    service = rota.service
    answering = time.perf_counter()
    spec = Spec("x", ("true",), "/tmp", Request(gpus=0), priority=4, estimate_s=1.0)
    run = service.do(me, Submit(spec))
    service.wait(run.id)
    done = time.perf_counter()
    rss = [int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmRSS")][0]
    print(json.dumps([answering - begun, done - begun, imported - begun, rss / 1024]), flush=True)
    time.sleep(600)
"""


def fill(path: Path, count: int, *, ended: bool) -> None:
    """A database with so many runs, written by the real store in its own words."""
    store = open_store(path / "rota.db")
    epoch = store.begin_epoch()
    state = store.load()
    clock = SystemClock()
    batch: list[e.Event] = [e.ServerStarted(at=clock.now(), epoch=epoch, boot_id=clock.boot_id())]
    batch += [e.NodeSeen(at=clock.now(), node=node) for node in simulated_cluster(2, 8)]
    for event in batch:
        reduce(state, event)
    now = clock.now() - count
    for number in range(count):
        batch += _one(state, number, now + number, ended=ended)
        if len(batch) >= 2000:
            _append(store, state, batch)
            batch = []
    _append(store, state, batch)
    store.close()


def _append(store, state: State, batch: list[e.Event]) -> None:
    store.append(batch, state)
    for run in list(state.touched.values()):
        if run.ended_at is not None:
            state.retire(run.id)
    state.touched.clear()


def _one(state: State, number: int, at: float, *, ended: bool) -> list[e.Event]:
    run_id = f"{number:012x}"
    argv = ("/bin/sh", "-c", f"python train.py --lr 0.{number}")
    env = {f"VARIABLE_{i}": f"value {i} of user {number % 15}" for i in range(20)}  # captured at submit, a user's own
    # those that wait ask for GPUs that are not there, so that they stand in the queue and stay there
    request = Request(gpus=1 << number % 4, gpu_type="" if ended else "none such")
    spec = Spec(f"train-{number}", argv, "/tmp", request, env=env)
    made: list[e.Event] = [
        e.RunSubmitted(
            at=at,
            run_id=run_id,
            seq=state.next_seq,
            user=f"u{number % 15}",
            spec=spec,
            held=False,
            waiting_on=(),
            expected_s=600.0,
            expected_from="estimate",
        )
    ]
    if ended:
        from rota.core.resources import Slice

        attempt = f"{run_id}-1"
        placement = (Slice("node1", (1 << spec.request.gpus) - 1),)
        exit = Exit(Cause.EXITED, code=0, started_tick=1.0, ended_tick=61.0)
        made += [
            e.AttemptPlanned(at=at, run_id=run_id, attempt_id=attempt, tick=1.0, fence=1, placement=placement),
            e.AttemptStarted(at=at, run_id=run_id, attempt_id=attempt, pid=2),
            e.AttemptEnded(at=at, run_id=run_id, attempt_id=attempt, exit=exit, gpu_s=60.0, next=RunState.SUCCEEDED),
        ]
    for event in made:
        reduce(state, event)
    return made


def _serve(path: Path) -> tuple[subprocess.Popen[str], list[float]]:
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert server.stdout is not None
    return server, json.loads(server.stdout.readline())


def restart(scale: float) -> list[Row]:
    count = int(100_000 * scale)
    rows = []
    for ended in (True, False):
        with tempfile.TemporaryDirectory(prefix="rota-bench-", dir="/var/tmp") as where:
            path = Path(where)
            fill(path, count, ended=ended)
            server, _ = _serve(path)
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            server, (answering, dispatched, imports, rss) = _serve(path)
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            kind = "ended" if ended else "waiting"
            rows.append(
                Row(
                    "7",
                    f"{count:,} {kind} runs on disk, kill -9, start: answering (and a job done)",
                    f"{answering:.2f} s ({dispatched:.2f})",
                    f"of it importing Python {imports:.2f} s",
                    f"{answering / imports:.1f}x",
                    "2 s",
                    "0.5 s",
                    verdict(dispatched, 2, 0.5, more_is_better=False),
                )
            )
            if ended:
                rows.append(
                    Row("-", f"server RSS, {count:,} ended runs", f"{rss:.0f} MB", "-", "-", "150 MB", "-",
                        verdict(rss, 150, None, more_is_better=False))
                )  # fmt: skip
        time.sleep(0.1)
    return rows
