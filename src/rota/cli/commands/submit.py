"""`rota submit`: a command into the queue, and out comes its id, its place and why it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rota.cli import stopping
from rota.cli.connect import (
    connect,
    dry_option,
    emit,
    full_id,
    json_option,
    leave,
    note_ignored,
    note_left_out,
    say,
    server_option,
)
from rota.cli.environment import mask
from rota.cli.render import plain
from rota.cli.stopping import stopping_options
from rota.cli.values import Amount, Duration, Priority, Where, export_option, surroundings
from rota.client import calls

if TYPE_CHECKING:
    from rota.client.sync import Client

TIMES = "How long it may run: 90 (seconds), 90s, 30m, 2h, 1d, 1w, or as Slurm has it MM:SS, HH:MM:SS, D-HH:MM:SS."
WHENS = ("succeeded", "ended", "failed")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-G", "--gpus", type=click.IntRange(0, 100_000), help="GPUs to hold.  [default: 1 where there are any]")
@click.option("-N", "--nodes", type=click.IntRange(1, 10_000), help="Spread them evenly over so many nodes.")
@click.option("-J", "--name", default="", help="A name for the run.  [default: the command's]")
@click.option("-t", "--time", "limit_s", type=Duration(), help=TIMES)
@click.option("-p", "--priority", type=Priority(), help="low, normal, high, critical, or 1 to 4.")
@click.option("-C", "--chdir", type=Where(), help="Run it there instead of here.")
@click.option(
    "-e", "--env", "pairs", multiple=True, metavar="NAME=VALUE", help="Set a variable; NAME alone takes yours."
)
@export_option
@click.option("--shell", "line", default="", metavar="LINE", help="A line for the shell instead of a command.")
@click.option("--estimate", "estimate_s", type=Duration(), help="How long it will take, for the plan.")
@click.option("--retries", type=click.IntRange(0, 100), help="Tries after the first, also when the command fails.")
@click.option("--depends", multiple=True, metavar="ID[:WHEN]", help="After that run succeeded, ended or failed.")
@stopping_options
@click.option("--tag", "tags", multiple=True, help="A word to find it by.")
@click.option("--held", is_flag=True, help="Let it wait until `rota release`.")
@click.option("--reservation", metavar="ID|NAME", help="Use the GPUs it keeps, in its time: rota reserve.")
@click.option("--gpu-type", default="", help="A part of the GPU's name, such as H100.")
@click.option("--gpu-memory", type=Amount(), metavar="SIZE", help="At least so much on each GPU: GB, or 40G.")
@click.option("--cpus", type=click.IntRange(0), help="CPUs on each node.")
@click.option("--mem", type=Amount(), metavar="SIZE", help="Host memory on each node: GB, or 16G, 512M.")
@click.option("--terminal", is_flag=True, help="Give it a terminal that `rota attach` can look into.")
@click.option("--no-snapshot", is_flag=True, help="Do not record the state of the git checkout.")
@click.option("--idempotency-key", default="", metavar="KEY", help="Submitted with this key before: that run again.")
@click.option("--wait", is_flag=True, help="Wait for its end, and exit as it did; Ctrl-C cancels it.")
@click.option(
    "-f", "--follow", is_flag=True, help="Show its output as well. Ctrl-C cancels it; to only watch: rota logs -f ID."
)
@click.option("-q", "--quiet", is_flag=True, help="Print only the id.")
@dry_option
@json_option
@server_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(command: tuple[str, ...], line: str, server: str, **options: Any) -> None:
    """Put COMMAND into the queue. Everything from its first word on is its own.

    \b
    rota submit -G 2 -t 4h -- python train.py --lr 0.1
    rota submit --shell 'python prepare.py && python train.py'
    """
    if command and line:
        raise click.UsageError("a command or --shell LINE, not both; put the command into the line")
    if not command and not line:
        raise click.UsageError("give a command to run, or a line for the shell with --shell")
    with connect(server) as client:
        fields = _fields(client, command or ("/bin/sh", "-c", line), options)
        dry_run, held = options["dry_run"], options["held"]
        call = calls.submit(line or command, name=options["name"], held=held, dry_run=dry_run, inherit=False, **fields)
        run = client.do(calls.raw(call))  # as it came: nothing is loaded that is not needed
        note_ignored(run)
        note_left_out(fields.get("workspace"))
        run_id = str(run.get("id"))
        staying = (options["wait"] or options["follow"]) and not dry_run
        if options["as_json"]:
            emit(run) if not staying else None
        elif options["quiet"]:
            click.echo(run_id)
        else:
            _tell(client, run, dry_run, staying)
            _suggest(run)
        for text in run.get("warnings") or ():
            say(f"note: {plain(text)}")
        if not options["quiet"]:
            stopping.note_signal(options, run)
        if (options["gpus"] or 0) > 1 and not options["quiet"] and not options["as_json"]:
            _note_nodes(client, options["gpus"], options["nodes"])
        if staying:
            _stay(client, run_id, options)


def _fields(client: Client, argv: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The options in the words of POST /runs; what was not given is left to the server."""
    where, env = surroundings(options["chdir"], options["pairs"], options["export"])
    fields: dict[str, Any] = {
        "workdir": where,
        "gpus": options["gpus"],
        "nodes": options["nodes"],
        "env": env,
        "umask": mask(),
        "priority": options["priority"],
        "time_limit_seconds": options["limit_s"],
        "estimated_duration_seconds": options["estimate_s"],
        "max_retries": options["retries"],
        "retry_failures": True if options["retries"] else None,
        "depends_on": [_dependency(client, text) for text in options["depends"]] or None,
        **stopping.fields(options),
        "terminal": options["terminal"] or None,
        "tags": list(options["tags"]) or None,
        "gpu_type": options["gpu_type"] or None,
        "reservation": _reservation(client, options["reservation"]),
        "gpu_memory_gb": options["gpu_memory"],
        "cpus": options["cpus"],
        "memory_gb": options["mem"],
        "idempotency_key": options["idempotency_key"],
    }
    if not options["no_snapshot"]:
        from rota.cli.workspace import snapshot

        fields["workspace"] = snapshot(where, argv, env)
    return fields


def _reservation(client: Client, text: str | None) -> str | None:
    if text is None:
        return None
    from rota.cli.kept import reservation_id

    try:
        return reservation_id(client, text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--reservation") from None


def _dependency(client: Client, text: str) -> dict[str, str]:
    run_id, _, when = text.partition(":")
    if when not in ("", *WHENS):
        raise click.BadParameter(f"{when[:30]!r} is not one of {', '.join(WHENS)}", param_hint="--depends")
    return {"run_id": full_id(client, run_id), "when": when or "succeeded"}


def _tell(client: Client, run: Any, dry_run: bool, staying: bool) -> None:
    from rota.cli.follow import joined, place

    run_id = str(run.get("id"))
    if dry_run:
        note = f"; note: it {plain(run['note'])}" if run.get("note") else ""
        click.echo(f"would be accepted; nothing was done{note}")
    elif staying:
        say(joined(run_id))
    else:
        click.echo(client.do(calls.read(calls.run(run_id), place)))


def _suggest(run: Any) -> None:
    if run.get("suggestion"):
        shorter = "a shorter" if run.get("time_limit_seconds") else "a"
        say(f"note: {plain(run['suggestion'])}; {shorter} time limit (-t) may let it start sooner")


def _note_nodes(client: Client, gpus: int, nodes: int | None) -> None:
    """Who asks for more GPUs than a machine has should know that each machine starts the command."""
    if nodes is None:
        largest = max((len(node.gpus) for node in client.nodes()), default=0)
        spread = f"more than the {largest} GPUs of a node" if largest and gpus > largest else ""
    else:
        spread = f"{nodes} nodes" if nodes > 1 else ""
    if spread:
        say(f"note: {spread}: the command is started once on each node; ROTA_NODE_RANK tells which")


def _stay(client: Client, run_id: str, options: dict[str, Any]) -> None:
    from rota.cli.follow import stay

    code = stay(client, run_id, output=options["follow"], quiet=options["quiet"] or options["as_json"])
    if options["as_json"]:
        emit(client.run(run_id).raw)
    leave(code)
