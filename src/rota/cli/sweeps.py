"""A sweep or a job array by its id, where people name one as they would a run."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rota.cli.render import clock, plain, span, state
from rota.client.errors import NotFound, Refused
from rota.client.words import ACTIVE, WAITING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rota.client.model.run import Run
    from rota.client.model.sweep import Sweep
    from rota.client.sync import Client

MOST_RUNS = 10_000
HEADS = ("RUN", "STATE", "GPUS", "RAN", "EXIT", "NAME")


def find(client: Client, sweep_id: str) -> Sweep | None:
    try:
        return client.sweep(sweep_id)
    except NotFound:
        return None


def withdraw(client: Client, sweep_id: str) -> int:
    """Take what waits of it out of the queue; how many that were. A refusal is left to `cancel`, which tells of it."""
    taken = 0
    for run in list(client.runs(sweep_id=sweep_id, status=",".join(WAITING), limit=MOST_RUNS)):
        with suppress(Refused):
            client.cancel(run.id)
            taken += 1
    return taken


def cancel(client: Client, sweep_id: str, *, dry_run: bool, withdrawn: int = 0, now: bool = False) -> str:
    """End its live runs, those that wait first: else one would start in the place of each that was ended.
    `withdrawn`: how many were taken out of the queue before."""
    live = list(client.runs(sweep_id=sweep_id, status=",".join((*WAITING, *ACTIVE)), limit=MOST_RUNS))
    live.sort(key=lambda run: not run.waiting)
    waiting, running = withdrawn, 0
    for run in live:
        try:
            answer = client.cancel(run.id, now=now, dry_run=dry_run)
        except Refused as refusal:
            if refusal.status not in (400, 404):  # it has just ended: what was wanted is so
                raise
            continue
        if answer.get("status") == "stopped":
            waiting += 1
        else:
            running += 1
    if not waiting + running:
        return f"sweep {sweep_id}: nothing of it waits or runs"
    if dry_run:
        return f"sweep {sweep_id}: {waiting + running} could be stopped"
    return f"sweep {sweep_id}: {waiting} cancelled, {running} stopping"


def story(sweep: Sweep, runs: Iterable[Run]) -> str:
    from rota.cli.table import facts, table

    counts = {state(name): n for name, n in (sweep.progress or {}).items() if n}
    parameters = sweep.parameters or {}
    told = facts(
        [
            ("sweep", sweep.id),
            ("name", sweep.name),
            ("state", sweep.status),
            ("command", sweep.base_command),
            ("parameters", " ".join(f"{name}={_values(values)}" for name, values in parameters.items())),
            ("made", clock(sweep.created_at)),
            ("runs", ", ".join(f"{n} {name}" for name, n in counts.items())),
        ]
    )
    from rota.cli.slurm.jobs import task_of

    runs = list(runs)
    tasks = [task_of(run) for run in runs]
    indexed = any(task is not None for task in tasks)  # of an array: its runs all have the same name
    heads = (HEADS[0], "INDEX", *HEADS[1:]) if indexed else HEADS
    rows: list[tuple[object, ...]] = [
        (run.id, state(run.status), run.gpu_count, span(ran(run)), "-" if run.exit_code is None else run.exit_code,
         run.name)
        for run in runs
    ]  # fmt: skip
    if indexed:
        rows = [(row[0], "-" if task is None else task, *row[1:]) for task, row in zip(tasks, rows, strict=True)]
    return f"{told}\n\n{table(heads, rows, right=('INDEX', 'GPUS', 'RAN', 'EXIT'))}" if rows else told


def ran(run: Run) -> float | None:
    """How long a run that has ended ran; None of others, and of one that never did."""
    begin = run.started_at or run.launched_at
    return None if begin is None or run.ended_at is None else run.ended_at - begin


def _values(values: object) -> str:
    return plain(",".join(map(str, values)) if isinstance(values, list) else values)
