"""`rota sweep`: one command over a grid of parameters."""

from __future__ import annotations

import math
from itertools import islice, product
from typing import Any

import click

from rota.cli import stopping
from rota.cli.connect import connect, dry_option, emit, json_option, note_ignored, note_left_out, say, server_option
from rota.cli.render import plain
from rota.cli.stopping import stopping_options
from rota.cli.values import Duration, Priority, Where, export_option, parameter, surroundings

MOST_RUNS = 10_000
MOST_SHOWN = 3


@click.command()
@click.option("--base", "base_command", required=True, metavar="LINE", help="The command; --NAME=VALUE is added to it.")
@click.option(
    "-p", "--param", "params", multiple=True, required=True, metavar="NAME=VALUES", help="lr=0.1,0.01 seed=1..5"
)
@click.option("--parallel", type=click.IntRange(1, MOST_RUNS), help="Keep at most so many going.  [default: all]")
@click.option("--max-runs", type=click.IntRange(1, MOST_RUNS), help="Cut the grid there.  [default: the whole grid]")
@click.option("-G", "--gpus", type=click.IntRange(0, 100_000), help="GPUs of each run.")
@click.option("-t", "--time", "limit_s", type=Duration(), help="How long each may run.")
@click.option("--priority", type=Priority(), help="low, normal, high, critical, or 1 to 4.")
@click.option("--estimate", "estimate_s", type=Duration(), help="How long each will take, for the plan.")
@stopping_options
@click.option("-C", "--chdir", type=Where(), help="Run it there instead of here.")
@click.option("-e", "--env", "pairs", multiple=True, metavar="NAME=VALUE", help="Set a variable.")
@export_option
@click.option("--held", is_flag=True, help="Make the runs, and start none.")
@click.option("--no-snapshot", is_flag=True, help="Do not record the state of the git checkout.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the id.")
@dry_option
@json_option
@server_option
@click.argument("name")
def command(name: str, base_command: str, params: tuple[str, ...], server: str, **options: Any) -> None:
    """Make a run for every combination of the parameters.

    \b
    rota sweep lr --base 'python train.py' -p lr=0.1,0.01 -p seed=1..5 --parallel 4
    """
    parameters = _grid(params)
    size = math.prod(map(len, parameters.values()))
    if size > MOST_RUNS and not options["max_runs"]:
        raise click.UsageError(f"that makes {size} runs; cut the grid with --max-runs, {MOST_RUNS} at most")
    where, env = surroundings(options["chdir"], options["pairs"], options["export"])
    fields: dict[str, Any] = {
        "workdir": where,
        "gpu_count": options["gpus"],
        "time_limit_seconds": options["limit_s"],
        "estimated_duration_seconds": options["estimate_s"],
        **stopping.fields(options),
        "priority": options["priority"],
        "env": env,
    }
    if not options["no_snapshot"]:
        from rota.cli.workspace import snapshot

        fields["workspace"] = snapshot(where, ("/bin/sh", "-c", base_command), env)
    with connect(server) as client:
        starts = not options["held"] and options["parallel"] is None
        sweep = client.create_sweep(
            name,
            base_command,
            parameters,
            max_runs=options["max_runs"] or size,
            auto_start=starts,
            dry_run=options["dry_run"],
            inherit=False,
            **fields,
        )
        note_ignored(sweep.raw)
        note_left_out(fields.get("workspace"))
        if options["parallel"] and not options["held"] and not options["dry_run"]:
            client.start_sweep(sweep.id, parallel=options["parallel"])
            sweep = client.sweep(sweep.id)
        elif options["parallel"] and not options["dry_run"]:
            let_go = f"rota release --parallel {options['parallel']} {sweep.id}"
            say(f"note: held runs have no cap yet; let them go with `{let_go}`")
    if options["as_json"]:
        emit(sweep.raw)
    elif options["quiet"]:
        click.echo(sweep.id)
    else:
        total = int((sweep.progress or {}).get("total", len(sweep.run_ids)))
        if options["dry_run"]:
            click.echo(_planned(base_command, parameters, total))
        else:
            click.echo(f"sweep {sweep.id} {sweep.status}: {total} runs")


def _grid(params: tuple[str, ...]) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for text in params:
        name, values = parameter(text)
        if name in found:
            raise click.BadParameter(f"{name[:80]!r} is given twice; write {name[:80]}=VALUE,VALUE", param_hint="-p")
        found[name] = values
    return found


def _planned(base: str, parameters: dict[str, list[object]], total: int) -> str:
    """How many, and the first commands as the server will write them."""
    import shlex

    lines = [f"would be {total} run{'s'[: total != 1]}; nothing was done"]
    for values in islice(product(*parameters.values()), min(total, MOST_SHOWN)):
        words = (f"--{name}={shlex.quote(str(value))}" for name, value in zip(parameters, values, strict=True))
        lines.append(f"  {plain(' '.join((base, *words)))}")
    if total > MOST_SHOWN:
        lines.append(f"  ... and {total - MOST_SHOWN} more")
    return "\n".join(lines)
