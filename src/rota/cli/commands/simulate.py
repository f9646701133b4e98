"""`rota simulate`: what other policies would do to the same jobs, before anybody switches one on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from rota.cli.connect import emit, json_option, say, server_option
from rota.cli.exits import REFUSED
from rota.cli.values import Duration, Where

PATH = Where(path_type=Path)


@click.command()
@click.argument("trace", required=False, metavar="[TRACE.csv]", type=PATH)
@click.option(
    "--since", "since_s", type=Duration(), help="Instead of a trace: the server's own runs, so far back: 30d."
)
@click.option("--nodes", default="", metavar="NxM|FILE", help="The cluster: 2x8, or a TOML file with [[node]] tables.")
@click.option(
    "--policy", "policies", multiple=True, metavar="NAME|FILE.toml", help="Again for another one, side by side."
)
@click.option(
    "--preemptible", type=click.Choice(["all", "none"]),
    help="Whether jobs may be stopped: of a trace those that do not say so, with --since all of them.  "
    "[default: all in a trace; with --since as each was submitted]",
)  # fmt: skip
@click.option(
    "--declare",
    "declared",
    type=click.Choice(["true", "class", "sloppy", "none"]),
    help="How well people declare their time, of jobs without one.  [default: class; with --since none]",
)
@click.option("--no-preempt", is_flag=True, help="No policy stops a job.")
@click.option(
    "--preempt-cost", type=click.IntRange(0, 86_400), default=60, show_default=True, help="Seconds a stop costs."
)
@click.option(
    "--shakes", type=click.IntRange(0, 1000), default=0, show_default=True,
    help="Times to simulate with submits and durations a little off; the table then has means (and deviations).",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="Of chance.")
@click.option("--compare", type=click.Choice(["live"]), help="With --since: who would have waited more, and who less.")
@click.option(
    "--plots", type=PATH, metavar="DIR|FILE", help="Pictures: a page (.html), one .png or .svg, or a directory."
)
@click.option("--schedule", type=PATH, metavar="FILE.csv", help="Every attempt with its place and time.")
@click.option("--processes", type=click.IntRange(1, 512), help="At a time.  [default: as many as CPUs]")
@json_option
@server_option
def command(as_json: bool, **said: Any) -> None:
    """Replay jobs on a virtual cluster under other policies, by the scheduler that the server runs.

    \b
    rota simulate trace.csv --nodes 2x8 --policy auto --policy easy --shakes 20
    rota simulate --since 30d --compare live --plots report.html

    A trace has the columns job_id, submit_time_s, duration_s, gpus, and may have user, limit_s, priority, preemptible.
    Policies: fcfs-strict fcfs-skip priority sjf fair_share easy conservative srtf las auto.
    """
    from rota.cli.simulate.ask import ask
    from rota.cli.simulate.bar import Bar
    from rota.cli.simulate.options import Options
    from rota.cli.simulate.play import CannotGoOn, play
    from rota.cli.simulate.tell import Told

    options = Options(**said)
    options.must_fit()
    bar = Bar()
    try:
        asked = ask(options, bar.say)
        told = Told(asked, options, *play(asked, options, bar))
        bar.say("drawing and writing")
        written = told.write()
    except CannotGoOn as error:
        bar.clear()
        say(str(error))
        sys.exit(REFUSED)
    finally:
        bar.clear()
    emit(told.json(written)) if as_json else click.echo(told.text())
    for path in written:
        say(f"wrote {path}")
