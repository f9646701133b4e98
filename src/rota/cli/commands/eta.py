"""`rota eta`: when will mine start, how sure is that, and what would be sooner."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from rota.cli.connect import complete, connect, emit, full_id, json_option, server_option
from rota.cli.prospect import bound, probably, sooner
from rota.cli.render import expected, plain

if TYPE_CHECKING:
    from rota.client.model.run import Eta
    from rota.client.sync import Client


@click.command()
@click.option("-q", "--quiet", is_flag=True, help="Only the seconds from now; nothing where that cannot be told.")
@click.option("--calibration", is_flag=True, help="How such predictions did so far.")
@json_option
@server_option
@click.argument("run_id", required=False, shell_complete=complete)
def command(run_id: str | None, quiet: bool, calibration: bool, as_json: bool, server: str) -> None:
    """When RUN_ID is expected to start, how sure that is, and what would start it sooner."""
    if (run_id is None) != calibration:
        raise click.UsageError("give a RUN_ID, or --calibration to see how predictions did so far")
    with connect(server) as client:
        if run_id is None:
            _calibration(client, as_json)
            return
        found = client.eta(full_id(client, run_id))
    if as_json:
        emit(found.raw)
    elif quiet:
        if found.p50 is not None or found.seconds is not None:
            click.echo(f"{_seconds(found):.0f}")
    else:
        click.echo("\n".join(_lines(found)))


def _seconds(found: Eta) -> float:
    """The same moment as in words."""
    if found.p50 is None:
        return found.seconds or 0.0
    return max(0.0, found.p50 - time.time())


def _lines(found: Eta) -> list[str]:
    if found.status not in ("queued", "ready"):
        return [f"{found.run_id} does not wait: it is {plain(found.status)}"]
    if found.p50 is None:
        told = f"{' is' if found.eta is not None else ':'} {expected(found.eta)}{'; ' if found.why else ''}"
        return [f"{found.run_id}{told}{plain(found.why)}", *_overdue(found), *_sooner(found)]
    lines = [f"{found.run_id}: {probably(found)}"]
    if found.confidence:
        lines.append(f"  {plain(found.confidence)}, from {plain(found.rests_on)}")
    if bound(found):
        lines.append(f"  {bound(found)}")
    return lines + _overdue(found) + _sooner(found)


def _overdue(found: Eta) -> list[str]:
    return [f"  overdue: {plain(one.text)}" for one in found.overdue]


def _sooner(found: Eta) -> list[str]:
    return [f"  {sooner(found, one)}" for one in found.alternatives]


def _calibration(client: Client, as_json: bool) -> None:
    from rota.cli.calibration import drawn

    found = client.calibration()
    if as_json:
        emit(found.raw)
    else:
        click.echo(drawn(found))
