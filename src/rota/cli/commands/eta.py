"""`rota eta`: when will mine start."""

from __future__ import annotations

import click

from rota.cli.connect import connect, emit, full_id, json_option, run_argument, server_option
from rota.cli.render import expected, plain


@click.command()
@click.option("-q", "--quiet", is_flag=True, help="Only the seconds from now; nothing where that cannot be told.")
@json_option
@server_option
@run_argument
def command(run_id: str, quiet: bool, as_json: bool, server: str) -> None:
    """When RUN_ID is expected to start."""
    with connect(server) as client:
        found = client.eta(full_id(client, run_id))
    if as_json:
        emit(found.raw)
    elif quiet:
        if found.seconds is not None:
            click.echo(f"{found.seconds:.0f}")
    elif found.status not in ("queued", "ready"):
        click.echo(f"{found.run_id} does not wait: it is {plain(found.status)}")
    else:
        click.echo(f"{found.run_id}{':' if found.eta is None else ' is'} {expected(found.eta)}")
