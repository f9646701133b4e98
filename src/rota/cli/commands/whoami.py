"""`rota whoami`: who the server takes me for."""

from __future__ import annotations

import click

from rota.cli.connect import connect, emit, json_option, server_option
from rota.cli.render import plain


@click.command()
@json_option
@server_option
def command(as_json: bool, server: str) -> None:
    """Who the server takes you for, and how it knows."""
    with connect(server) as client:
        me = client.whoami()
        url = client.url
    if as_json:
        emit({**me.raw, "server": url})
        return
    acting = f" for {me.acts_for}" if me.acts_for else ""
    known = f", known by {me.known_by}" if me.known_by else ""
    click.echo(plain(f"{me.name} ({me.role}{acting}) at {url}{known}"))
