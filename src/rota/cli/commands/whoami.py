"""`rota whoami`: who the server takes me for."""

from __future__ import annotations

import click

from rota.cli.connect import connect, emit, json_option, server_option
from rota.cli.render import homely, plain
from rota.client.address import find_token

BY_TOKEN = ("token", "shared")


@click.command()
@json_option
@server_option
def command(as_json: bool, server: str) -> None:
    """Who the server takes you for, and how it knows."""
    with connect(server) as client:
        me = client.whoami()
        url = client.url
    shown = find_token()[1] if me.known_by in BY_TOKEN else ""
    if as_json:
        emit({**me.raw, "server": url, "token_from": shown})
        return
    acting = f" for {me.acts_for}" if me.acts_for else ""
    known = f", by the token in {homely(shown)}" if shown else f", known by {me.known_by}" if me.known_by else ""
    click.echo(plain(f"{me.name} ({me.role}{acting}) at {url}{known}"))
