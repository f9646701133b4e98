"""`rota queue`: what runs, and what waits, in order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import click

from rota.cli.connect import connect, emit, json_option, server_option
from rota.cli.render import gpus, plain, priority, span, state
from rota.cli.sweeps import ran
from rota.cli.watch import show, watch_option
from rota.client.words import ENDED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rota.client.model.cluster import Job, Queue
    from rota.client.model.run import Run
    from rota.client.sync import Client

MOST_HELD, MOST_ENDED = 1000, 100
HEADS = ("RUN", "STATE", "USER", "GPUS", "PRIORITY", "TIME", "WHERE", "NAME")


@click.command()
@click.option("--mine", is_flag=True, help="Only your own.")
@click.option("--user", default="", help="Only this person's.")
@click.option("--all", "everything", is_flag=True, help="Held ones and the newest ended ones too.")
@click.option("--sweep", default="", metavar="ID", help="Only the runs of this sweep or array.")
@click.option("-q", "--quiet", is_flag=True, help="Only ids.")
@watch_option
@json_option
@server_option
def command(
    mine: bool, user: str, everything: bool, sweep: str, quiet: bool, watch: bool, as_json: bool, server: str
) -> None:
    """What runs, and what waits, in the order in which it will start if nothing else comes in.

    TIME is how long a run has run or waited; of one that ended, how long it ran.
    """
    with connect(server) as client:
        if mine:
            me = client.whoami()
            user = me.acts_for or me.name
        chosen = _Chosen(user, everything, sweep, frozenset(client.sweep(sweep).run_ids) if sweep else None)

        def draw() -> str:
            found = client.queue()
            jobs = [job for job in (*found.running, *found.queued) if chosen.has(job)]
            others = chosen.others(client)
            if quiet:
                return "\n".join([*(job.id for job in jobs), *(run.id for run in others)])
            return _picture(found, jobs, others, everybodys=bool(user or sweep))

        if as_json:
            emit(_json(client, chosen))
        elif quiet and not watch:
            text = draw()
            click.echo(text) if text else None
        else:
            show(draw, watch)


class _Chosen(NamedTuple):
    """Which runs were asked for."""

    user: str
    everything: bool
    sweep: str
    of_sweep: frozenset[str] | None

    def has(self, job: Job) -> bool:
        return self.user in ("", job.user) and (self.of_sweep is None or job.id in self.of_sweep)

    def others(self, client: Client) -> list[Run]:
        """Those that neither run nor wait their turn: held ones, then the newest that ended, the last end first."""
        if not self.everything:
            return []
        held = client.runs(status="ready", user=self.user, sweep_id=self.sweep, limit=MOST_HELD)
        ended = client.runs(status=",".join(ENDED), user=self.user, sweep_id=self.sweep, limit=MOST_ENDED)
        return [*held, *sorted(ended, key=lambda run: -(run.ended_at or 0.0))]


def _json(client: Client, chosen: _Chosen) -> dict[str, object]:
    found = client.queue()
    answer: dict[str, object] = {
        **found.raw,
        "queued": [job.raw for job in found.queued if chosen.has(job)],
        "running": [job.raw for job in found.running if chosen.has(job)],
    }
    if chosen.everything:
        answer["held"] = [run.raw for run in chosen.others(client) if run.status == "ready"]
    return answer


def _picture(found: Queue, jobs: Iterable[Job], others: Iterable[Run], *, everybodys: bool) -> str:
    from rota.cli.table import table

    now = time.time()
    rows = [_row(job, now) for job in jobs]
    rows += [
        (
            run.id,
            state(run.status),
            run.user,
            run.gpu_count,
            "filler" if run.filler else priority(run.priority),
            _time(run, now),
            "-",
            run.name,
        )
        for run in others
    ]
    statistics = found.statistics or {}
    running = statistics.get("running", len(found.running))
    line = f"{running} running, {statistics.get('queued', len(found.queued))} waiting"
    held = statistics.get("held")
    line += f", {held} held" if held else ""
    line = f"everybody's: {line}" if everybodys else line  # and not only of the runs above
    if found.raw.get("paused"):
        why = found.raw.get("pause_why")
        until = "" if found.raw.get("resumes_itself") else ": nothing starts until an admin resumes it"
        line += f"; scheduling is paused{f': {why}' if why else ''}{until}"
    if not rows:
        return f"nothing here: {plain(line)}; try: rota submit -- echo hello"
    return f"{table(HEADS, rows, right=('GPUS', 'TIME'))}\n\n{plain(line)}"


def _time(run: Run, now: float) -> str:
    """How long it ran; how long it has waited where it still does."""
    waited = now - run.created_at if run.waiting and run.created_at else None
    return span(ran(run) if run.ended else waited)


def _row(job: Job, now: float) -> tuple[object, ...]:
    word = str(job.raw.get("status") or job.state)
    since = (job.started_at or job.scheduled_at) if job.allocated_gpus or word == "running" else job.submitted_at
    where = gpus(job.allocated_gpus)
    what = job.name or job.command
    return (
        job.id,
        "stopping" if job.raw.get("stopping") else state(word),
        job.user,
        job.gpu_count,
        "filler" if job.raw.get("filler") else priority(job.priority),
        span(now - since) if since else "-",
        where,
        what,
    )
