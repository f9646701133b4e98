"""`rota serve`: the server, in the foreground, for scripts and service managers."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import click

from rota.cli.values import Where

CANNOT = 75
LAST_THREADS_S = 1.0
MADE_BY = "ROTA_MADE_BY"  # set by the Makefile: how flags reach a `rota up` that nobody typed


def server_options(command: Any) -> Any:
    """The flags of `serve` and `up`. None = not given: a variable or the default counts."""
    for option in reversed(
        (
            click.option("--host", help="Address to listen on.  [default: 127.0.0.1]"),
            click.option("--port", type=click.IntRange(0, 65535), help="Port of the server.  [default: 10000]"),
            click.option(
                "--lease-port", type=click.IntRange(0, 65535), help="Port of the lease door; 0 = none.  [default: 9123]"
            ),
            click.option(
                "--data-dir", type=Where(file_okay=False, path_type=Path), help="Where Rota keeps its things."
            ),
            click.option("--workdir", type=Where(), help="Directory of runs that name none.  [default: here]"),
            click.option("--nodes", type=click.IntRange(1, 5000), help="Simulate so many nodes."),
            click.option("--gpus", type=click.IntRange(0, 64), help="Simulate so many GPUs on each node."),
            click.option("--database-url", help="PostgreSQL instead of SQLite; better given as ROTA_DATABASE_URL."),
            click.option("--run-as", help="As root: the account of people who have none on this machine."),
            click.option("--verbose", is_flag=True, help="Say more on stderr."),
        )
    ):
        command = option(command)
    return command


def settings_of(flags: dict[str, Any]) -> Any:
    from rota.config import BadSetting, read_settings

    nodes, gpus = flags.pop("nodes"), flags.pop("gpus")
    flags.pop("verbose")
    if nodes is not None or gpus is not None:
        flags["simulated"] = (2 if nodes is None else nodes, 8 if gpus is None else gpus)
    try:
        settings, _ = read_settings(flags)
    except BadSetting as error:
        raise click.UsageError(str(error)) from error
    return settings


@click.command()
@server_options
def command(**flags: Any) -> None:
    """Serve in the foreground until SIGTERM or Ctrl-C. Running jobs run on when it stops.

    Settings also come from the environment (ROTA_PORT, ROTA_DATA_DIR, ...; see `rota config show --origin`).
    """
    run(flags, friendly=False)


def run(flags: dict[str, Any], *, friendly: bool) -> None:
    # A start makes a million objects and hardly any garbage; main.serve() turns the collector on when the server is up.
    gc.disable()
    from rota import observe
    from rota.app.errors import CannotStart
    from rota.main import serve

    verbose = flags["verbose"]
    settings = settings_of(flags)
    observe.configure(settings.shared_token, verbose=verbose)
    unwritten: list[OSError] = []

    def say(text: str) -> None:
        try:
            click.echo(text)
        except OSError as error:
            unwritten.append(error)
            raise

    try:
        code = serve(settings, say, friendly=friendly)
    except OSError as error:
        if error in unwritten:
            raise  # main tells of output that cannot be written
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"rota: the server cannot go on: {where}{error.strerror or error}", err=True)
        sys.exit(CANNOT)
    except CannotStart as error:
        click.echo(f"rota: {error}", err=True)
        if friendly and os.environ.get(MADE_BY) and "--port" in str(error):
            click.echo(f"rota: flags are given with: {os.environ[MADE_BY]}", err=True)
        sys.exit(CANNOT)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process. All is closed by now, so a thread that is still at work can only read: it is not waited for."""
    deadline = time.monotonic() + LAST_THREADS_S
    others = [one for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]
    for thread in others:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in others):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
