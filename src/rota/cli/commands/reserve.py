"""`rota reserve`: keep GPUs for a time, see what is kept, give it up again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from rota.cli.connect import connect, dry_option, emit, json_option, say, server_option
from rota.cli.kept import reservation_id as reservation_id_of
from rota.cli.render import clock, in_time, plain, span
from rota.cli.values import Duration
from rota.cli.when import EXAMPLES, Moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rota.client.model.reservation import Reservation

HEADS = ("RESERVATION", "STATE", "FROM", "UNTIL", "GPUS", "WHERE", "USER", "RUNS", "NAME")
USAGE = 'say how many and for how long: rota reserve --gpus 8 --from "tomorrow 9:00" --for 4h'


def _start(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """What is now, the server knows best."""
    return None if value is None or value.strip().lower() == "now" else Moment().convert(value, param, ctx)


@click.group(invoke_without_command=True)
@click.option("-G", "--gpus", type=click.IntRange(1, 100_000), help="GPUs to keep.")
@click.option("--from", "start", callback=_start, metavar="WHEN", help=f"When it begins: {EXAMPLES}.  [default: now]")
@click.option("--for", "for_s", type=Duration(), help="How long: 30m, 4h, 2d.")
@click.option("--until", type=Moment(), help="When it ends, instead of --for.")
@click.option("-N", "--nodes", type=click.IntRange(1, 10_000), help="Spread them evenly over so many nodes.")
@click.option("--gpu-type", default="", help="A part of the GPU's name, such as H100.")
@click.option("-J", "--name", default="", help="What it is for, in a word.")
@click.option("--user", "users", multiple=True, help="Who may use it besides you; may be given again and again.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the id.")
@dry_option
@json_option
@server_option
@click.pass_context
def command(ctx: click.Context, /, server: str, quiet: bool, as_json: bool, **wanted: Any) -> None:
    """Keep GPUs for a time. Runs use them with `rota submit --reservation ID`.

    \b
    rota reserve --gpus 8 --from "tomorrow 9:00" --for 4h --name demo --user ben
    rota reserve list
    rota reserve cancel ID
    """
    if ctx.invoked_subcommand is not None:
        return
    if wanted["for_s"] is not None and wanted["until"] is not None:
        raise click.UsageError("--for or --until, not both: how long it lasts, or when it ends")
    missing = ["--gpus"] if wanted["gpus"] is None else []
    missing += ["--for (or --until)"] if wanted["for_s"] is None and wanted["until"] is None else []
    if missing:
        raise click.UsageError(f"{' and '.join(missing)} missing; {USAGE}")
    wanted["nodes"] = wanted["nodes"] or 0
    with connect(server) as client:
        made = client.reserve(**wanted)
    if as_json:
        emit(made.raw)
    elif quiet:
        click.echo(made.id)
    else:
        _tell(made, wanted["dry_run"])


@command.command(name="list")
@click.option("--days", type=click.IntRange(1, 31), default=7, show_default=True, help="So many in the picture.")
@json_option
@server_option
def listed(days: int, as_json: bool, server: str) -> None:
    """The calendar: a picture of the coming days, and all that is reserved."""
    with connect(server) as client:
        found = client.reservations()
    emit([one.raw for one in found]) if as_json else click.echo(_calendar(found, days))


@command.command()
@dry_option
@json_option
@server_option
@click.argument("reservation_id")
def cancel(reservation_id: str, dry_run: bool, as_json: bool, server: str) -> None:
    """Give RESERVATION_ID up; its name, or a part of its id, will do. What runs on its GPUs runs on."""
    with connect(server) as client:
        try:
            whole = reservation_id_of(client, reservation_id)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="RESERVATION_ID") from None
        gone = client.cancel_reservation(whole, dry_run=dry_run)
    if as_json:
        emit(gone)
    else:
        name = plain(gone["reservation"]["id"])
        click.echo(f"{name} could be given up; nothing was done" if dry_run else f"{name} is given up")


def _tell(made: Reservation, dry_run: bool) -> None:
    begin = "now" if made.state == "active" else in_time(made.start)
    what = f"{made.gpus} GPU{'s'[: made.gpus != 1]} on {_where(made)}, {begin}, until {clock(made.end)}"
    if dry_run:
        click.echo(f"would be {what}; nothing was done")
    else:
        click.echo(f"{made.id} {what}")
    if made.ready_at is not None and made.ready_at > made.start:
        say(f"note: {_late(made, made.ready_at)}")
    for one in made.overdue:
        # the id of a dry run names nothing
        text = one.text.replace(f"the reservation {made.id}", "the reservation") if dry_run else one.text
        say(f"note: {plain(text)}")
    if not dry_run:
        say(f"use it with: rota submit --reservation {made.id} -- COMMAND")


def _late(made: Reservation, ready_at: float) -> str:
    who = f" ({', '.join(map(plain, made.blocked_by[:4]))})" if made.blocked_by else ""
    busy = f"are expected to be busy until {clock(ready_at)}{who}"
    if made.never_ready >= made.gpus > 0:
        none = "none of these GPUs is expected to be free before the reservation ends"
        return f"{none}: all {busy}; take a later or longer time (--from, --for), or it may be of no use"
    if made.never_ready:
        first = f"{made.never_ready} of the {made.gpus} are not expected to be free before the reservation ends"
        return f"{first}; some {busy}; the reservation gets them as they come free"
    return f"some {busy}; the reservation gets them as they come free"


def _calendar(found: Sequence[Reservation], days: int) -> str:
    if not found:
        return 'nothing is reserved; try: rota reserve --gpus 1 --from "tomorrow 9:00" --for 2h --dry-run'
    from rota.cli.agenda import picture
    from rota.cli.table import table

    drawn = picture(found, time.time(), days)
    rows = [_row(one) for one in found]
    blocked = [f"{one.id} is blocked: {plain(late.text)}" for one in found for late in one.overdue]
    listed = "\n".join([table(HEADS, rows, right=("GPUS", "RUNS")), *blocked])
    return f"{drawn}{chr(10) * 2 if drawn else ''}{listed}"


def _row(one: Reservation) -> tuple[object, ...]:
    until = f"{_short(one.end)} ({span(one.end - one.start)})"
    out = f"  ({len(one.out_of_service)} of its GPUs out of service)" if one.out_of_service else ""
    who = ", ".join((one.user, *one.users))
    return one.id, one.state, _short(one.start), until, one.gpus, _where(one), who, one.run_count, f"{one.name}{out}"


def _where(one: Reservation) -> str:
    return " ".join(f"{plain(node)}:{_numbers(numbers)}" for node, numbers in one.nodes.items())


def _numbers(numbers: Sequence[int]) -> str:
    """0-3,6 for 0,1,2,3,6."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _short(at: float) -> str:
    return time.strftime("%a %Y-%m-%d %H:%M", time.localtime(at))
