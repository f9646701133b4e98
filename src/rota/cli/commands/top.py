"""`rota top`: GPUs, queue and your runs, live."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from rota.cli.exits import NOT_AUTHORISED, REFUSED, UNREACHABLE


@click.command()
def command() -> None:
    """GPUs, queue and your runs, live in this terminal.

    Keys: Enter shows a run with its log, c cancels it, / filters, Tab changes the pane, q or Ctrl-C quits.
    """
    try:
        import textual  # noqa: F401 - only to say so in time
    except ImportError:
        click.echo("rota: `rota top` needs the library textual: pip install 'rota[tui]'", err=True)
        sys.exit(REFUSED)
    if not sys.stdout.isatty():
        click.echo("rota: `rota top` needs a terminal; in a pipe use: rota queue, rota gpus", err=True)
        sys.exit(REFUSED)
    from rota.client.errors import RotaError, Unauthorised, Unreachable
    from rota.client.sync import Client

    try:
        client = Client.from_env()
        client.whoami()
    except Unreachable as error:
        _end(f"{error}; {error.next_step}", UNREACHABLE)
    except Unauthorised as error:
        _end(f"{error}; set ROTA_TOKEN, or: rota login", NOT_AUTHORISED)
    except RotaError as error:
        _end(str(error), REFUSED)
    from rota.cli.tui.app import Top

    with client:
        sys.exit(Top(client).run() or 0)


def _end(message: str, code: int) -> NoReturn:
    click.echo(f"rota: {message}", err=True)
    sys.exit(code)
