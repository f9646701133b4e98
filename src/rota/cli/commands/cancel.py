"""`rota cancel`: end runs: waiting ones leave the queue, running ones are stopped."""

from __future__ import annotations

import click

from rota.cli.connect import connect, dry_option, for_each, leave, runs_argument, server_option


@click.command()
@dry_option
@server_option
@runs_argument
def command(run_ids: tuple[str, ...], dry_run: bool, server: str) -> None:
    """End runs: waiting ones leave the queue, running ones are stopped."""
    with connect(server) as client:

        def act(run_id: str) -> str:
            client.cancel(run_id, dry_run=dry_run)
            return f"{run_id} {'could be stopped' if dry_run else 'stopping'}"

        code = for_each(client, run_ids, act)
    leave(code)
