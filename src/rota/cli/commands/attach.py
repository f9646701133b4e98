"""`rota attach`: keyboard and screen of a run that was started with a terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rota.cli.connect import run_argument, say
from rota.cli.exits import REFUSED
from rota.cli.options import data_dir_option
from rota.cli.render import plain
from rota.client.address import URL_NAMES


@click.command()
@click.option("--tmux", is_flag=True, help="In a new tmux window, in the session $ROTA_TMUX_SESSION or this one.")
@data_dir_option
@run_argument
def command(run_id: str, tmux: bool, data_dir: Path) -> None:
    """Look into RUN_ID, started with --terminal. Ctrl-] leaves; the run goes on.

    It goes by the data directory, not by ROTA_URL: be on the machine of the server, and name its data directory.
    """
    if not tmux and not sys.stdin.isatty():
        say("`rota attach` needs a terminal; in a pipe use: rota logs -f RUN_ID")
        sys.exit(REFUSED)
    from rota.app.errors import CannotStart, Refused
    from rota.config import BadSetting, read_settings
    from rota.main import attach

    try:
        session = read_settings({})[0].tmux_session if tmux else ""
    except BadSetting as error:
        raise click.UsageError(str(error)) from error
    if not tmux:
        say(f"joining {plain(run_id)}; Ctrl-] leaves it, and it goes on")
    try:
        how = attach(data_dir, run_id, tmux=tmux, session=session)
    except (CannotStart, Refused) as error:
        say(f"{error}{_elsewhere(data_dir)}")
        sys.exit(REFUSED)
    click.echo(f"\r\nrota: {how}", err=True)


def _elsewhere(data_dir: Path) -> str:
    """Somebody whose other commands go to another server than that of this directory should know."""
    from rota.client.address import find_url

    url, where = find_url()
    if where not in URL_NAMES or url == f"unix://{data_dir.expanduser() / 'rota.sock'}":
        return ""
    return f"; attach does not use {where}: be on the machine of that server, with --data-dir of its data directory"
