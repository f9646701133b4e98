"""`rota config`: the settings, and where each came from."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from rota.cli.connect import emit, json_option, say
from rota.cli.exits import USAGE

SECRET = ("shared_token", "database_url")


@click.group()
def command() -> None:
    """The settings of this environment."""


@command.command()
@click.option("--origin", is_flag=True, help="Say where each comes from.")
@json_option
def show(origin: bool, as_json: bool) -> None:
    """Every setting of a server and of the client, as a command started here would find them."""
    from rota.config import BadSetting, read_settings

    try:
        settings, origins = read_settings({})
    except BadSetting as error:
        say(str(error))
        sys.exit(USAGE)
    values: dict[str, tuple[Any, str]] = {}
    for name, where in origins.items():
        value = getattr(settings, name)
        values[name] = ("(set)" if name in SECRET and value else _plain(value), where)
    values |= {f"client.{name}": pair for name, pair in _client().items()}
    if as_json:
        emit({name: {"value": value, "origin": where} for name, (value, where) in values.items()})
        return
    from rota.cli.table import table

    rows = [(name, "-" if value in ("", None) else value, where) for name, (value, where) in values.items()]
    heads = ("SETTING", "VALUE", "FROM")
    click.echo(table(heads, rows) if origin else table(heads[:2], [row[:2] for row in rows]))


def _client() -> dict[str, tuple[Any, str]]:
    from rota.client.address import find_token, find_url, token_file
    from rota.client.errors import RotaError

    url, url_from = find_url()
    try:
        token, token_from = find_token()
    except RotaError as error:
        token, token_from = "", str(error)
    return {
        "url": (url, url_from),
        "token": ("(set)" if token else "", token_from),
        "token_file": (token_file(os.environ), "default"),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)
