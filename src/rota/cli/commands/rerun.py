"""`rota rerun`: the same once more, if wanted from the very code it was submitted from."""

from __future__ import annotations

import os
from typing import Any

import click

from rota.cli.connect import (
    connect,
    dry_option,
    emit,
    full_id,
    json_option,
    leave,
    note_ignored,
    run_argument,
    say,
    server_option,
)
from rota.cli.values import Where


@click.command()
@click.option(
    "--restore",
    type=Where(),
    metavar="DIR",
    help="Make a fresh git worktree there as the code was then, and run in it.",
)
@click.option("--held", is_flag=True, help="Let it wait until `rota release`.")
@click.option("--wait", is_flag=True, help="Wait for its end, and exit as it did; Ctrl-C cancels it.")
@click.option("-f", "--follow", is_flag=True, help="Show its output as well.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the id.")
@dry_option
@json_option
@server_option
@run_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(run_id: str, restore: str | None, command: tuple[str, ...], server: str, **options: Any) -> None:
    """Run RUN_ID again as a new run, with another COMMAND if one is given after --."""
    with connect(server) as client:
        old = client.run(full_id(client, run_id))
        workdir = None
        if restore:
            from rota.cli.restore import restored

            workdir = restored(client.workspace(old.id), old.workdir, os.path.abspath(restore), options["dry_run"])
        run = client.rerun(
            old.id,
            argv=command or None,
            workdir=workdir,
            held=options["held"],
            dry_run=options["dry_run"],
        )
        note_ignored(run.raw)
        staying = (options["wait"] or options["follow"]) and not options["dry_run"]
        if options["as_json"] and not staying:
            emit(run.raw)
        elif options["quiet"]:
            click.echo(run.id)
        elif options["dry_run"]:
            click.echo("would be accepted; nothing was done")
        elif staying and not options["as_json"]:
            from rota.cli.follow import joined

            say(joined(run.id))
        elif not staying:
            from rota.cli.follow import place

            click.echo(place(client.run(run.id).raw))
        if staying:
            from rota.cli.follow import stay

            code = stay(client, run.id, output=options["follow"], quiet=options["quiet"] or options["as_json"])
            if options["as_json"]:
                emit(client.run(run.id).raw)
            leave(code)
