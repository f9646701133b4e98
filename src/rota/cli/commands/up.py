"""`rota up`: the server with friendly defaults, and what to do next."""

from __future__ import annotations

from typing import Any

import click

from rota.cli.commands.serve import run, server_options


@click.command()
@server_options
def command(**flags: Any) -> None:
    """Start Rota on this machine: prints its address, a login link, where the token lies and a first command to try.

    The first time it makes an admin token. GPUs are this machine's own, or a simulated 2 x 8 where there are none.
    """
    run(flags, friendly=True)
