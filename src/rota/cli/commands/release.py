"""`rota release`: let held runs go, one by one or all of a sweep."""

from __future__ import annotations

import click

from rota.cli import sweeps
from rota.cli.connect import connect, dry_option, for_each, leave, runs_argument, server_option
from rota.client.errors import NotFound


@click.command()
@dry_option
@server_option
@click.option(
    "--parallel",
    type=click.IntRange(0, sweeps.MOST_RUNS),
    help="Of a sweep or array: keep at most so many going; 0 lifts its cap.  [default: its cap]",
)
@runs_argument
def command(run_ids: tuple[str, ...], parallel: int | None, dry_run: bool, server: str) -> None:
    """Let held runs go. The id of a sweep or array stands for all of its runs; the cap on how many of them run at a
    time stays as it is unless --parallel says otherwise."""
    with connect(server) as client:

        def act(run_id: str) -> str:
            what = run_id
            try:
                client.release(run_id, dry_run=dry_run)
            except NotFound:
                sweep = sweeps.find(client, run_id)
                if sweep is None:
                    raise
                cap = int(sweep.raw.get("parallel") or 0) if parallel is None else parallel
                client.start_sweep(run_id, parallel=cap, dry_run=dry_run)
                what = f"sweep {run_id}"
            return f"{what} {'could be ' if dry_run else ''}released"

        code = for_each(client, run_ids, act)
    leave(code)
