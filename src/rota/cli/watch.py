"""`--watch`: the same view again and again, on a cleared screen."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import click

from rota.cli.connect import say
from rota.client.errors import Busy, Unreachable

watch_option = click.option("--watch", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
EVERY_S = 2.0
CLEAR = "\x1b[H\x1b[2J"


def show(draw: Callable[[], str], watch: bool) -> None:
    """Draw once, or until somebody leaves. A server that is away for a while does not end a watch."""
    if not watch:
        click.echo(draw())
        return
    tty = sys.stdout is not None and sys.stdout.isatty()
    while True:
        try:
            text = draw()
            click.echo(f"{CLEAR}{text}" if tty else f"{text}\n")
        except (Unreachable, Busy) as error:
            say(str(error))
        time.sleep(EVERY_S)
