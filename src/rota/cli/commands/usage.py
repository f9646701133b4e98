"""`rota usage`: who used how many GPU-hours."""

from __future__ import annotations

import time

import click

from rota.cli.connect import connect, emit, json_option, server_option
from rota.cli.values import Duration


@click.command()
@click.option(
    "--since", "since_s", type=Duration(), default="30d", show_default=True, help="How far back: 12h, 7d, ..."
)
@json_option
@server_option
def command(since_s: float, as_json: bool, server: str) -> None:
    """GPU-hours per person, of attempts that ended in this time."""
    from rota.cli.table import table

    with connect(server) as client:
        found = client.usage(since=max(0.0, time.time() - since_s))
    if as_json:
        emit([one.raw for one in found])
        return
    rows = [(one.user, one.attempts, f"{one.gpu_hours:.3f}") for one in found]
    click.echo(table(("USER", "ATTEMPTS", "GPU-HOURS"), rows, right=("ATTEMPTS", "GPU-HOURS")))
