"""`rota priority`: what goes first."""

from __future__ import annotations

import click

from rota.cli.connect import connect, dry_option, full_id, run_argument, server_option
from rota.cli.render import priority as word
from rota.cli.values import Priority


@click.command()
@dry_option
@server_option
@run_argument
@click.argument("priority", type=Priority(), metavar="low|normal|high|critical|1..4")
def command(run_id: str, priority: int, dry_run: bool, server: str) -> None:
    """Set the priority of a waiting run."""
    with connect(server) as client:
        run = client.set_priority(full_id(client, run_id), priority, dry_run=dry_run)
    click.echo(f"{run.id} {'would have' if dry_run else 'has'} priority {word(run.priority)}")
