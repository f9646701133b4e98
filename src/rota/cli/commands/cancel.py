"""`rota cancel`: end runs: waiting ones leave the queue, running ones are stopped."""

from __future__ import annotations

import click

from rota.cli import sweeps
from rota.cli.connect import complete, connect, dry_option, for_each, leave, server_option
from rota.client.errors import NotFound


@click.command()
@click.option("--sweep", "sweep_ids", multiple=True, metavar="ID", help="All that waits or runs of a sweep or array.")
@dry_option
@server_option
@click.argument("run_ids", nargs=-1, metavar="RUN_ID...", shell_complete=complete)
def command(run_ids: tuple[str, ...], sweep_ids: tuple[str, ...], dry_run: bool, server: str) -> None:
    """End runs: waiting ones leave the queue, running ones are stopped. The id of a sweep or array stands for all of
    its runs."""
    if not run_ids and not sweep_ids:
        raise click.UsageError("Missing argument 'RUN_ID...', or --sweep ID")
    with connect(server) as client:

        def one(run_id: str) -> str:
            try:
                answer = client.cancel(run_id, dry_run=dry_run)
            except NotFound:
                if sweeps.find(client, run_id) is None:
                    raise
                return sweeps.cancel(client, run_id, dry_run=dry_run)
            done = "cancelled" if answer.get("status") == "stopped" else "stopping"
            return f"{run_id} {'could be stopped' if dry_run else done}"

        def all_of(sweep_id: str) -> str:
            client.sweep(sweep_id)  # one that is not there says so
            return sweeps.cancel(client, sweep_id, dry_run=dry_run)

        code = for_each(client, sweep_ids, all_of)
        code = for_each(client, run_ids, one) or code
    leave(code)
