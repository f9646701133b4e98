"""`rota queue`: what runs, and what waits, in order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from rota.cli.connect import connect, emit, json_option, server_option
from rota.cli.render import gpus, plain, priority, span
from rota.cli.watch import show, watch_option

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rota.client.model.cluster import Job, Queue
    from rota.client.sync import Client

HEADS = ("RUN", "STATE", "USER", "GPUS", "PRIORITY", "TIME", "WHERE", "NAME")


@click.command()
@click.option("--mine", is_flag=True, help="Only your own.")
@click.option("--user", default="", help="Only this person's.")
@click.option("--all", "everything", is_flag=True, help="Held ones and the newest ended ones too.")
@click.option("-q", "--quiet", is_flag=True, help="Only ids.")
@watch_option
@json_option
@server_option
def command(mine: bool, user: str, everything: bool, quiet: bool, watch: bool, as_json: bool, server: str) -> None:
    """What runs, and what waits, in the order in which it will start if nothing else comes in."""
    with connect(server) as client:
        if mine:
            me = client.whoami()
            user = me.acts_for or me.name

        def draw() -> str:
            found = client.queue()
            jobs = [job for job in (*found.running, *found.queued) if user in ("", job.user)]
            if quiet:
                return "\n".join(job.id for job in jobs)
            return _picture(client, found, jobs, user, everything)

        if as_json:
            emit(_json(client, user, everything))
        elif quiet and not watch:
            text = draw()
            click.echo(text) if text else None
        else:
            show(draw, watch)


def _json(client: Client, user: str, everything: bool) -> dict[str, object]:
    found = client.queue()
    answer: dict[str, object] = {
        **found.raw,
        "queued": [job.raw for job in found.queued if user in ("", job.user)],
        "running": [job.raw for job in found.running if user in ("", job.user)],
    }
    if everything:
        answer["held"] = [run.raw for run in client.runs(status="ready", user=user, limit=1000)]
    return answer


def _picture(client: Client, found: Queue, jobs: Iterable[Job], user: str, everything: bool) -> str:
    from rota.cli.table import table

    now = time.time()
    rows = [_row(job, now) for job in jobs]
    if everything:
        others = client.runs(status="ready,finished,failed,stopped", user=user, limit=100)
        rows += [
            (run.id, run.status, run.user, run.gpu_count, priority(run.priority),
             span(now - run.created_at) if run.created_at else "-", "-", run.name)
            for run in others
        ]  # fmt: skip
    statistics = found.statistics or {}
    running = statistics.get("running", len(found.running))
    line = f"{running} running, {statistics.get('queued', len(found.queued))} waiting"
    held = statistics.get("held")
    line += f", {held} held" if held else ""
    if not rows:
        return f"nothing here: {plain(line)}; try: rota submit -- echo hello"
    return f"{table(HEADS, rows, right=('GPUS', 'TIME'))}\n\n{plain(line)}"


def _row(job: Job, now: float) -> tuple[object, ...]:
    state = str(job.raw.get("status") or job.state)
    since = (job.started_at or job.scheduled_at) if job.allocated_gpus or state == "running" else job.submitted_at
    where = gpus(job.allocated_gpus)
    what = job.name or job.command
    return (
        job.id,
        state,
        job.user,
        job.gpu_count,
        priority(job.priority),
        span(now - since) if since else "-",
        where,
        what,
    )
