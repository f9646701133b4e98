"""`rota release`: let held runs go, or a sweep, without a cap."""

from __future__ import annotations

import click

from rota.cli import sweeps
from rota.cli.connect import connect, dry_option, for_each, leave, runs_argument, server_option
from rota.client.errors import NotFound


@click.command()
@dry_option
@server_option
@runs_argument
def command(run_ids: tuple[str, ...], dry_run: bool, server: str) -> None:
    """Let held runs go. The id of a sweep or array stands for all of its runs, and lifts its cap: as many run at a time
    as there is room for."""
    with connect(server) as client:

        def act(run_id: str) -> str:
            what = run_id
            try:
                client.release(run_id, dry_run=dry_run)
            except NotFound:
                if sweeps.find(client, run_id) is None:
                    raise
                client.start_sweep(run_id, parallel=0, dry_run=dry_run)
                what = f"sweep {run_id}"
            return f"{what} {'could be ' if dry_run else ''}released"

        code = for_each(client, run_ids, act)
    leave(code)
