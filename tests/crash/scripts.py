"""What the servers under test do. Each acknowledgement is written to a file as soon as Rota gave it."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rota.adapters.store.compare import compare
from rota.app.authz import Principal, Role
from rota.app.commands import Cancel, Release, Reprioritise, Submit
from rota.app.errors import Refused
from rota.app.ports import RunFilter
from rota.app.service import Service
from rota.config import Settings
from rota.core.check import check
from rota.core.resources import Request
from rota.core.run import Run, Spec
from rota.main import open_rota

ME = Principal("tester", Role.ADMIN)
Ack = Callable[..., None]


@contextmanager
def server(data_dir: str, **more: Any) -> Iterator[Service]:
    settings = Settings(Path(data_dir), simulated=(2, 8), probe_every_s=3600, tidy_every_s=3600, **more)
    with open_rota(settings) as rota:
        yield rota.service


def acknowledger(path: str) -> Ack:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def ack(what: str, **facts: object) -> None:
        os.write(fd, json.dumps({"what": what, **facts}).encode() + b"\n")

    return ack


def job(marks: str, tail: str = "", gpus: int = 1) -> Spec:
    """A job that leaves a mark each time it is really started (a gang by its first process)."""
    line = f'test "$ROTA_NODE_RANK" != 0 || echo "$ROTA_ATTEMPT_ID" >> {marks}; echo hello {tail}'
    return Spec(
        name="endless" if "sleep 300" in tail else "marked",
        argv=("/bin/sh", "-c", line),
        workdir=os.path.dirname(marks),
        request=Request(gpus=gpus),
        grace_s=1.0,
        estimate_s=1.0,
    )


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("waited too long")
        time.sleep(0.002)


def life(data_dir: str, marks: str, acks: str, go: str) -> None:
    """submit -> start -> finish, hold -> reprioritise -> release -> cancel, start -> cancel while it runs."""
    ack = acknowledger(acks)
    with server(data_dir) as service:
        ack("ready")
        until(lambda: os.path.exists(go))
        first: Run = service.do(ME, Submit(job(marks), key="first"))
        ack("submit", run=first.id, key="first")
        service.wait(first.id, 60)
        ack("ended", run=first.id)
        second: Run = service.do(ME, Submit(job(marks, "; sleep 300", gpus=2), key="second"))
        ack("submit", run=second.id, key="second")
        third: Run = service.do(ME, Submit(job(marks), held=True, key="third"))
        ack("submit", run=third.id, key="third")
        service.do(ME, Reprioritise(third.id, 3))
        ack("priority", run=third.id, priority=3)
        service.do(ME, Release(third.id))
        ack("release", run=third.id)
        until(lambda: service.run(second.id).state == "running")
        service.do(ME, Cancel(second.id))
        ack("cancel", run=second.id)
        service.wait(second.id, 60)
        service.wait(third.id, 60)
        ack("done")


def leave_work(data_dir: str, marks: str, acks: str) -> None:
    """Die with work in every state: running, ended unseen, stopping, queued behind a full cluster, held."""
    ack = acknowledger(acks)
    with server(data_dir) as service:
        endless: list[str] = []
        tails = [("; sleep 0.3", 8), ("; sleep 300", 4), ("", 1), ("; sleep 0.2", 2), ("", 16), ("; exit 0", 1)]
        for tail, gpus in tails:
            run: Run = service.do(ME, Submit(job(marks, tail, gpus)))
            ack("submit", run=run.id)
            if run.spec.name == "endless":
                endless.append(run.id)
        held: Run = service.do(ME, Submit(job(marks), held=True))
        ack("submit", run=held.id)
        service.do(ME, Cancel(endless[0], grace_s=0.5))
        ack("cancel", run=endless[0])
        os.kill(os.getpid(), 9)


def take_over(data_dir: str, acks: str, go: str) -> None:
    """Open what somebody left, and stay until nothing is active."""
    ack = acknowledger(acks)
    ack("forked")
    until(lambda: os.path.exists(go))
    with server(data_dir) as service:
        until(lambda: not service.ask(lambda state, now: state.active))


def storm(data_dir: str, marks: str, acks: str, in_flight: int, seed: int) -> None:
    """Keep so many jobs in flight, cancelling some, until killed."""
    rnd = random.Random(seed)
    ack = acknowledger(acks)
    with server(data_dir) as service:
        ack("ready")
        live = {run.id for run in service.ask(lambda state, now: list(state.runs.values()))}
        while True:
            live = {run_id for run_id in live if service.run(run_id).ended_at is None}
            while len(live) < in_flight:
                spec = job(marks, f"; sleep {rnd.choice([0, 0, 0.05, 0.2, 0.6])}", rnd.choice([0, 1, 1, 2, 4]))
                run: Run = service.do(ME, Submit(spec))
                ack("submit", run=run.id)
                live.add(run.id)
            if rnd.random() < 0.3:
                victim = rnd.choice(sorted(live))
                try:
                    service.do(ME, Cancel(victim, grace_s=0.0))
                    ack("cancel", run=victim)
                except Refused:
                    pass  # it had just ended
            time.sleep(rnd.uniform(0, 0.01))


def verify(data_dir: str, out: str, settle_s: float = 60.0) -> None:
    """Open once more, let everything end, and write down what is true."""
    begun = time.monotonic()
    with server(data_dir) as service:
        opened_s = time.monotonic() - begun
        for run in service.ask(lambda state, now: list(state.runs.values())):
            if run.spec.name == "endless":
                with suppress(Refused):  # it may end by itself: its cancel was under way
                    service.do(ME, Cancel(run.id, grace_s=0.0))
            if run.state == "held":
                service.do(ME, Release(run.id))
        loop = service._loop

        def idle() -> bool:
            waiting, active = service.ask(lambda state, now: (state.waiting, state.active))
            return not waiting and not active

        until(idle, settle_s)
        wrong = service.ask(lambda state, now: check(state))
        replayed, loaded = loop.store.replay(), loop.store.load()
        runs = _all_runs(service)
        free, installed = service.ask(
            lambda state, now: (state.board.free_gpus, sum(len(n.gpus) for n in state.nodes.values()))
        )
        facts = {
            "opened_s": opened_s,
            "check": wrong,
            "replay": compare(replayed, loaded),
            "free": free,
            "installed": installed,
            "live": [name for name in loop.backend.strays() if service.run(name[:12]).attempt is not None],
            "runs": {
                run.id: {
                    "name": run.spec.name,
                    "state": run.state,
                    "priority": run.priority,
                    "attempts": [a.id for a in loop.store.attempts(run.id)],
                    "causes": [a.exit.cause for a in loop.store.attempts(run.id)],
                    "gpu_s": [a.gpu_s for a in loop.store.attempts(run.id)],
                }
                for run in runs
            },
        }
    Path(out).write_text(json.dumps(facts))


def _all_runs(service: Service) -> list[Run]:
    runs: list[Run] = []
    before = None
    while page := service.runs(RunFilter(before=before, limit=1000)):
        runs += page
        before = page[-1].seq
    return runs
