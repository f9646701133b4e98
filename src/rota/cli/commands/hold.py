"""`rota hold`: keep waiting runs from starting, until they are released."""

from __future__ import annotations

import click

from rota.cli.connect import connect, dry_option, for_each, leave, runs_argument, server_option


@click.command()
@dry_option
@server_option
@runs_argument
def command(run_ids: tuple[str, ...], dry_run: bool, server: str) -> None:
    """Keep waiting runs from starting, until they are released."""
    with connect(server) as client:

        def act(run_id: str) -> str:
            client.hold(run_id, dry_run=dry_run)
            return f"{run_id} {'could be ' if dry_run else ''}held"

        code = for_each(client, run_ids, act)
    leave(code)
