"""`rota logout`: the way back from `rota login`."""

from __future__ import annotations

import os
import sys

import click

from rota.cli.connect import say
from rota.cli.exits import REFUSED
from rota.cli.render import homely, plain


@click.command()
def command() -> None:
    """Remove the token that `rota login` stored. It still counts at the server, until an admin revokes it."""
    from rota.client.address import TOKEN_NAMES, token_file

    path = token_file(os.environ)
    shown = plain(homely(path))
    try:
        os.unlink(path)
    except FileNotFoundError:  # also where there is no home, and so no path
        click.echo(f"no token is stored{f' in {shown}' if path else ': there is no home directory'}")
    except OSError as error:
        say(f"cannot remove {shown}: {error.strerror}")
        sys.exit(REFUSED)
    else:
        click.echo(f"removed the token in {shown}")
    for name in TOKEN_NAMES:
        if os.environ.get(name):
            say(f"note: {name} is still set, and its token is used; to end that: unset {name}")
