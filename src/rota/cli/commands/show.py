"""`rota show`: all that is known of one run."""

from __future__ import annotations

import click

from rota.cli import streams, sweeps
from rota.cli.connect import connect, emit, full_id, json_option, run_argument, server_option


@click.command()
@click.option("--diff", is_flag=True, help="Print what was not committed when it was submitted, and nothing else.")
@click.option("--full", is_flag=True, help="The whole command, with the text of a batch script.")
@json_option
@server_option
@run_argument
def command(run_id: str, diff: bool, full: bool, as_json: bool, server: str) -> None:
    """All facts of a run: what was asked, where it ran, each attempt, the state of the code, and what it used. Of a
    sweep or array: how far it is, and its runs."""
    from rota.client.errors import Forbidden, NotFound

    with connect(server) as client:
        run_id = full_id(client, run_id)
        try:
            run = client.run(run_id)
        except NotFound:
            sweep = sweeps.find(client, run_id)
            if sweep is None:
                raise
            runs = () if as_json else tuple(client.runs(sweep_id=sweep.id, limit=sweeps.MOST_RUNS))
            emit(sweep.raw) if as_json else click.echo(sweeps.story(sweep, reversed(runs)))
            return
        try:
            workspace = client.workspace(run.id)
        except NotFound:
            workspace = None
        eta = client.eta(run.id) if run.status == "queued" and not (as_json or diff) else None
    if as_json:
        emit({**run.raw, "workspace": workspace})
    elif diff:
        if workspace and workspace.get("dirty") and "diff" not in workspace:
            raise Forbidden(403, "changes that were not committed are shown to the run's owner and admins only")
        streams.write(str((workspace or {}).get("diff", "")))
    else:
        from rota.cli.story import story

        click.echo(story(run, workspace, full=full, eta=eta))
