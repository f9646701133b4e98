"""`rota history`: the ended and the live runs of a data directory, and who used how many GPU-hours."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from rota.cli.options import data_dir_option
from rota.cli.render import plain


@click.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--days", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True, help="For usage.")
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
            totals = store.totals(now - days * 86400, now + 1)
    except CannotStart as error:
        click.echo(f"rota: {error}", err=True)
        sys.exit(75)
    if as_json:
        rows = [
            {
                "id": r.id,
                "name": r.spec.name,
                "user": r.user,
                "state": r.state,
                "gpus": r.spec.request.gpus,
                "why": r.why,
            }
            for r in runs
        ]
        usage = [{"user": t.user, "attempts": t.attempts, "gpu_hours": t.gpu_s / 3600} for t in totals]
        click.echo(json.dumps({"runs": rows, "usage": usage}))
        return
    if not runs:
        click.echo("nothing yet; try: rota local -- echo hello")
        return
    click.echo(f"{'RUN':12}  {'STATE':9}  {'GPUS':>4}  {'USER':12}  NAME")
    for run in runs:
        why = f"  ({run.why})" if run.why else ""
        what = plain(run.spec.name + why)
        click.echo(f"{run.id}  {run.state:9}  {run.spec.request.gpus:>4}  {plain(run.user):12.12}  {what}")
    click.echo(f"\n{'USER':12}  {'ATTEMPTS':>8}  GPU-HOURS in {days:g} days")
    for total in totals:
        click.echo(f"{plain(total.user):12.12}  {total.attempts:>8}  {total.gpu_s / 3600:.3f}")
