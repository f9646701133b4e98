"""A sweep or a job array by its id, where people name one as they would a run."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rota.cli.connect import say
from rota.cli.progress import Progress
from rota.cli.render import clock, plain, span, state
from rota.client.errors import NotFound, Refused
from rota.client.words import ACTIVE, WAITING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rota.client.answers import Json
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
    with suppress(Refused):
        done = _stop(client, sweep_id, waiting_only=True)
        return int(done["cancelled"])
    return 0


def cancel(client: Client, sweep_id: str, *, dry_run: bool, withdrawn: int = 0, now: bool = False) -> str:
    """End its live runs. `withdrawn`: how many were taken out of the queue before."""
    done = _stop(client, sweep_id, now=now, dry_run=dry_run)
    waiting, running = withdrawn + int(done["cancelled"]), int(done["stopping"])
    left = int(done["refused_count"])
    if left:
        say(f"note: {left} of sweep {sweep_id} left alone: {plain('; '.join(map(str, done['refused'])))}")
    if not waiting + running:
        return f"sweep {sweep_id}: nothing of it waits or runs"
    if dry_run:
        return f"sweep {sweep_id}: {waiting + running} could be stopped"
    return f"sweep {sweep_id}: {waiting} cancelled, {running} stopping"


def _stop(
    client: Client, sweep_id: str, *, waiting_only: bool = False, now: bool = False, dry_run: bool = False
) -> Json:
    """Stop its runs by one call, or one after another where the server is an older one."""
    try:
        return client.cancel_sweep(sweep_id, now=now, waiting_only=waiting_only, dry_run=dry_run)
    except Refused as refusal:
        if refusal.status not in (404, 405) or find(client, sweep_id) is None:
            raise
    states = WAITING if waiting_only else (*WAITING, *ACTIVE)
    live = list(client.runs(sweep_id=sweep_id, status=",".join(states), limit=MOST_RUNS))
    live.sort(key=lambda run: not run.waiting)  # else one would start in the place of each that was ended
    counts = {"cancelled": 0, "stopping": 0}
    progress = Progress()
    for number, run in enumerate(live, 1):
        progress.show(f"cancelling run {number} of {len(live)}", key="cancelling")
        try:
            answer = client.cancel(run.id, now=now, dry_run=dry_run)
        except Refused as refusal:
            if refusal.status not in (400, 404):  # it has just ended: what was wanted is so
                progress.clear()
                raise
            continue
        counts["cancelled" if answer.get("status") == "stopped" else "stopping"] += 1
    progress.clear()
    return {**counts, "refused": [], "refused_count": 0}


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
