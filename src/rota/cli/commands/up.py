"""`rota up`, until there are doors: real processes on a simulated 2 x 8, and a picture of what happened."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rota.app.service import Service
    from rota.core.events import Event
    from rota.core.run import Run

NODES, GPUS = 2, 8
LINE = 'echo "$ROTA_JOB_NAME: attempt $ROTA_ATTEMPT on $ROTA_NODE, GPUs $CUDA_VISIBLE_DEVICES"; '


@dataclass(frozen=True)
class Job:
    team: str
    name: str
    gpus: int
    seconds: float
    priority: int = 2
    tail: str = ""


JOBS = (
    Job("vision", "pretrain-8", 8, 1.6),
    Job("speech", "finetune-4", 4, 1.0),
    Job("vision", "sweep-a", 1, 0.8),
    Job("vision", "sweep-b", 1, 0.6),
    Job("agent", "probe-2", 2, 0.5),
    Job("speech", "gang-16", 16, 0.8, priority=3),
    Job("vision", "sweep-c", 1, 0.4),
    Job("agent", "broken", 1, 0.2, tail="; exit 3"),
    Job("speech", "eval-2", 2, 0.7),
)


@click.command()
def command() -> None:
    """Run a few jobs on a simulated 2 x 8 cluster and show what went where, who waited and why."""
    from rota.app.errors import CannotStart
    from rota.config import Settings
    from rota.main import open_rota

    click.echo(
        f"Rota on a SIMULATED cluster: {NODES} nodes x {GPUS} GPUs. The jobs are real processes, the GPUs are not.\n"
    )
    try:
        with (
            tempfile.TemporaryDirectory(prefix="rota-up-") as where,
            open_rota(Settings(Path(where), simulated=(NODES, GPUS))) as service,
        ):
            runs = _show(service)
            _picture(runs)
            _logs(service, runs)
    except CannotStart as error:
        click.echo(f"rota: {error}", err=True)
        sys.exit(75)
    click.echo("\nTry one yourself:\n  .venv/bin/rota local -G 2 -- sh -c 'echo my GPUs are $CUDA_VISIBLE_DEVICES'")
    click.echo("  .venv/bin/rota history")


def _show(service: Service) -> list[Run]:
    from rota.app.authz import Principal, Role
    from rota.app.commands import Submit
    from rota.core.resources import Request
    from rota.core.run import Spec

    begun = time.monotonic()
    names: dict[str, str] = {}

    def tell(first: int, events: Sequence[Event]) -> None:
        for event in events:
            words = _words(event, names)
            if words:
                with suppress(BrokenPipeError):  # our own next line meets it too, on a thread that may end
                    click.echo(f"{time.monotonic() - begun:6.2f} s  {words}")

    service.subscribe(tell)
    ids = []
    for job in JOBS:
        who = Principal(job.team, Role.USER)
        line = f"{LINE}sleep {job.seconds}{job.tail}"
        spec = Spec(
            name=job.name,
            argv=("/bin/sh", "-c", line),
            workdir=os.getcwd(),
            request=Request(gpus=job.gpus),
            priority=job.priority,
            estimate_s=job.seconds + 0.2,
        )
        run: Run = service.do(who, Submit(spec))
        names[run.id] = f"{job.name} ({job.team}, {job.gpus} GPU{'s' if job.gpus > 1 else ''})"
        ids.append(run.id)
    _why(service, ids, names)
    return [service.wait(run_id, 60) for run_id in ids]


def _why(service: Service, ids: Sequence[str], names: dict[str, str]) -> None:
    for run_id in ids:
        explanation = service.explain(run_id)
        if explanation.reasons:
            eta = service.eta(run_id)
            click.echo(f"          why is {names[run_id]} waiting?")
            for reason in explanation.reasons:
                behind = ", ".join(names.get(other, other) for other in reason.runs)
                click.echo(f"            {reason.code}: {reason.text}{' <- ' + behind if behind else ''}")
            if eta is not None:
                click.echo(f"            expected to start in {max(0.0, eta - time.time()):.1f} s")
            if explanation.hint:
                click.echo(f"            hint: {explanation.hint}")


def _words(event: Event, names: dict[str, str]) -> str:
    from rota.core import events as e
    from rota.core.resources import bits

    match event:
        case e.AttemptPlanned(run_id=run_id, placement=placement):
            where = " + ".join(f"{part.node}:{','.join(map(str, bits(part.gpus)))}" for part in placement)
            return f"start     {names.get(run_id, run_id)} on {where}"
        case e.AttemptEnded(run_id=run_id, next=state, why=why):
            return f"{state:10}{names.get(run_id, run_id)}{': ' + why if why else ''}"
        case _:
            return ""


def _picture(runs: Sequence[Run]) -> None:
    """A Gantt chart of the GPUs: a row per GPU, a letter per run."""
    from rota.core.resources import bits

    past = [(chr(ord("A") + i), run, attempt) for i, run in enumerate(runs) for attempt in run.past]
    first = min(attempt.planned_at for _, _, attempt in past)
    last = max(attempt.ended_at for _, _, attempt in past)
    width = 64
    scale = width / max(last - first, 1e-6)
    rows = {(f"node{n}", g): ["."] * width for n in range(1, NODES + 1) for g in range(GPUS)}
    for letter, _, attempt in past:
        begin, end = int((attempt.planned_at - first) * scale), int((attempt.ended_at - first) * scale)
        for part in attempt.placement:
            for gpu in bits(part.gpus):
                for column in range(begin, max(begin + 1, min(end, width))):
                    rows[part.node, gpu][min(column, width - 1)] = letter
    click.echo(f"\nGPU      0 s {'-' * (width - 12)} {last - first:.1f} s")
    for (node, gpu), row in rows.items():
        click.echo(f"{node}:{gpu}  {''.join(row)}")
    used = sum(attempt.gpu_s for _, _, attempt in past)
    click.echo(f"\n{len(runs)} runs, {used:.1f} GPU-seconds used of {(last - first) * NODES * GPUS:.1f}\n")
    for letter, run, attempt in past:
        waited = attempt.planned_at - run.submitted_at
        click.echo(f"  {letter} {run.spec.name:12} {run.user:8} {run.state:10} waited {waited:4.1f} s")


def _logs(service: Service, runs: Sequence[Run]) -> None:
    click.echo("\nThe first line of each log:")
    for run in runs:
        click.echo("  " + service.log(run.id, 0, 200).content.decode(errors="replace").splitlines()[0])
