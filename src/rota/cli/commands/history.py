"""`rota history`: the newest runs, and who used how many GPU-hours; from the server, or from a data directory alone."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rota.cli.connect import connect, emit, json_option, say, server_option
from rota.cli.exits import REFUSED
from rota.cli.nearby import server_of
from rota.cli.options import data_dir_option
from rota.cli.render import plain, span, state

if TYPE_CHECKING:
    from rota.core.run import Run

HEADS = ("RUN", "STATE", "SUBMITTED", "RAN", "EXIT", "GPUS", "USER", "NAME")
Facts = dict[str, Any]


def _days(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not 0 < value <= 36500:  # NaN is not
        raise click.BadParameter(f"{value} is not a number of days from 0 to 36500")
    return value


@click.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--days", type=float, callback=_days, default=30.0, show_default=True, help="For usage.")
@json_option
@data_dir_option
@server_option
def command(limit: int, days: float, as_json: bool, data_dir: Path, server: str) -> None:
    """What ran, newest first, and GPU-hours per person."""
    since = max(0.0, time.time() - days * 86400)
    url = server_of(server, data_dir)
    runs, used = _of_server(url, limit, since) if url else _of_directory(data_dir, limit, since)
    if as_json:
        emit({"runs": runs, "usage": used})
    elif not runs:
        click.echo("nothing yet; try: rota submit -- echo hello")
    else:
        click.echo(_drawn(runs, used, days))


def _of_server(url: str, limit: int, since: float) -> tuple[list[Facts], list[Facts]]:
    with connect(url) as client:
        runs = [
            {
                "id": run.id,
                "name": run.name,
                "command": run.command,
                "user": run.user,
                "state": run.status,
                "gpus": run.gpu_count,
                "submitted_at": run.created_at,
                "ended_at": run.ended_at,
                "attempts": len(run.attempts),
                "ran_s": _ran(run.started_at or run.launched_at, run.ended_at),
                "exit_code": run.exit_code,
                "why": run.error or run.why,
            }
            for run in client.runs(limit=limit)
        ]
        usage = client.usage(since=since)
    return runs, [{"user": one.user, "attempts": one.attempts, "gpu_hours": one.gpu_hours} for one in usage]


def _ran(started: float | None, ended: float | None) -> float | None:
    return None if started is None or ended is None else max(0.0, ended - started)


def _of_directory(data_dir: Path, limit: int, since: float) -> tuple[list[Facts], list[Facts]]:
    from rota.app.errors import CannotStart
    from rota.app.ports import RunFilter
    from rota.main import read_store

    try:
        with read_store(data_dir) as store:
            runs = store.runs(RunFilter(limit=limit))
            totals = store.totals(since, float("inf"))
    except CannotStart as error:
        say(str(error))
        sys.exit(REFUSED)
    usage = [{"user": t.user, "attempts": t.attempts, "gpu_hours": t.gpu_s / 3600} for t in totals]
    return [_facts(run) for run in runs], usage


def _facts(run: Run) -> Facts:
    last = run.past[-1] if run.past else None
    ticks = (last.exit.started_tick, last.exit.ended_tick) if last else (None, None)
    return {
        "id": run.id,
        "name": run.spec.name,
        "command": list(run.spec.argv),
        "user": run.user,
        "state": run.state.value,
        "gpus": run.spec.request.gpus,
        "submitted_at": run.submitted_at,
        "ended_at": run.ended_at,
        "attempts": run.attempts_made,
        "ran_s": None if ticks[0] is None or ticks[1] is None else ticks[1] - ticks[0],
        "exit_code": last.exit.code if last else None,
        "signal": last.exit.signal if last else None,
        "why": run.why,
    }


def _drawn(runs: list[Facts], used: list[Facts], days: float) -> str:
    from rota.cli.table import table

    rows = [
        (
            run["id"],
            state(run["state"]),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run["submitted_at"] or 0)),
            span(run["ran_s"]),
            "-" if run["exit_code"] is None else run["exit_code"],
            run["gpus"],
            run["user"],
            run["name"] + (f"  ({run['why']})" if run["why"] else ""),
        )
        for run in runs
    ]
    lines = table(HEADS, rows, right=("RAN", "EXIT", "GPUS"))
    head = ("USER", "ATTEMPTS", f"GPU-HOURS in {days:g} days")
    shares = [(plain(one["user"]), one["attempts"], f"{one['gpu_hours']:.3f}") for one in used]
    return f"{lines}\n\n{table(head, shares, right=('ATTEMPTS',))}"
