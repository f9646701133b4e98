"""`rota attach`: keyboard and screen of a run that was started with a terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rota.cli.connect import run_argument
from rota.cli.options import data_dir_option


@click.command()
@click.option("--tmux", is_flag=True, help="In a new tmux window, in the session $ROTA_TMUX_SESSION or this one.")
@data_dir_option
@run_argument
def command(run_id: str, tmux: bool, data_dir: Path) -> None:
    """Look into RUN_ID, started with `rota local --terminal`. Ctrl-] leaves; the run goes on."""
    from rota.app.errors import CannotStart, Refused
    from rota.config import BadSetting, read_settings
    from rota.main import attach

    try:
        session = read_settings({})[0].tmux_session if tmux else ""
    except BadSetting as error:
        raise click.UsageError(str(error)) from error
    try:
        how = attach(data_dir, run_id, tmux=tmux, session=session)
    except (CannotStart, Refused) as error:
        click.echo(f"rota: {error}", err=True)
        sys.exit(75)
    click.echo(f"\r\nrota: {how}", err=True)
