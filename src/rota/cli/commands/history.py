"""`rota history`: the ended and the live runs of a data directory, and who used how many GPU-hours."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rota.cli.options import data_dir_option
from rota.cli.render import plain

if TYPE_CHECKING:
    from rota.core.run import Run


def _days(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not 0 < value <= 36500:  # NaN is not
        raise click.BadParameter(f"{value} is not a number of days from 0 to 36500")
    return value


@click.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--days", type=float, callback=_days, default=30.0, show_default=True, help="For usage.")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
@data_dir_option
def command(limit: int, days: float, as_json: bool, data_dir: Path) -> None:
    """What ran, newest first, and GPU-hours per person."""
    from rota.app.errors import CannotStart
    from rota.app.ports import RunFilter
    from rota.main import read_store

    try:
        with read_store(data_dir) as store:
            runs = store.runs(RunFilter(limit=limit))
            now = time.time()
            totals = store.totals(now - days * 86400, float("inf"))
    except CannotStart as error:
        click.echo(f"rota: {error}", err=True)
        sys.exit(75)
    if as_json:
        usage = [{"user": t.user, "attempts": t.attempts, "gpu_hours": t.gpu_s / 3600} for t in totals]
        click.echo(json.dumps({"runs": [_facts(run) for run in runs], "usage": usage}))
        return
    if not runs:
        click.echo("nothing yet; try: rota local -- echo hello")
        return
    click.echo(f"{'RUN':12}  {'STATE':9}  {'SUBMITTED':16}  {'RAN':>9}  {'EXIT':>4}  {'GPUS':>4}  {'USER':10}  NAME")
    for run in runs:
        facts = _facts(run)
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.submitted_at))
        ran = "-" if facts["ran_s"] is None else f"{facts['ran_s']:.1f} s"
        code = "-" if facts["exit_code"] is None else str(facts["exit_code"])
        what = plain(run.spec.name + (f"  ({run.why})" if run.why else ""))
        row = f"{run.id}  {run.state:9}  {when}  {ran:>9}  {code:>4}  {run.spec.request.gpus:>4}"
        click.echo(f"{row}  {plain(run.user):10.10}  {what}")
    click.echo(f"\n{'USER':12}  {'ATTEMPTS':>8}  GPU-HOURS in {days:g} days")
    for total in totals:
        click.echo(f"{plain(total.user):12.12}  {total.attempts:>8}  {total.gpu_s / 3600:.3f}")


def _facts(run: Run) -> dict[str, Any]:
    last = run.past[-1] if run.past else None
    ticks = (last.exit.started_tick, last.exit.ended_tick) if last else (None, None)
    return {
        "id": run.id,
        "name": run.spec.name,
        "command": list(run.spec.argv),
        "user": run.user,
        "state": run.state,
        "gpus": run.spec.request.gpus,
        "submitted_at": run.submitted_at,
        "ended_at": run.ended_at,
        "attempts": run.attempts_made,
        "ran_s": None if ticks[0] is None or ticks[1] is None else ticks[1] - ticks[0],
        "exit_code": last.exit.code if last else None,
        "signal": last.exit.signal if last else None,
        "why": run.why,
    }
