"""The options that say how a run may be stopped, for the commands that make runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from rota.cli.connect import say
from rota.cli.values import Duration, Signal

C = TypeVar("C", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--preemptible", is_flag=True, help="May be stopped for something more urgent, and is run again."),
    click.option(
        "--checkpoint-signal",
        type=Signal(),
        help="It saves, and leaves, when it gets this: USR2, TERM, ...  [default: TERM, of one that does not save]",
    ),
    click.option(
        "--grace", "grace_s", type=Duration(least=0.0), help="How long until it is killed then.  [default: 10s]"
    ),
    click.option(
        "--warn-signal",
        type=Signal(),
        help="Sent before the time limit.  [default: the checkpoint signal, unless that is TERM]",
    ),
    click.option(
        "--warn",
        "warn_s",
        type=Duration(least=0.0),
        help="How long before; 0 for never.  [default: a twentieth of the limit, 60s at most]",
    ),
    click.option(
        "--filler",
        is_flag=True,
        help="Only where nobody else who waits could run; killed at once for anybody. With -t or --estimate up to 1h.",
    ),
)


def stopping_options(command: C) -> C:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def fields(options: dict[str, Any]) -> dict[str, Any]:
    """In the words of POST /runs; what was not given is left to the server."""
    return {
        "preemptible": options["preemptible"] or None,
        "checkpoint_signal": options["checkpoint_signal"],
        "grace_seconds": options["grace_s"],
        "warn_signal": options["warn_signal"],
        "warn_seconds": options["warn_s"],
        "filler": options["filler"] or None,
    }


def note_signal(options: dict[str, Any], run: Mapping[str, Any]) -> None:
    """Who names a checkpoint signal may believe that the run then makes way for others."""
    if options["checkpoint_signal"] is None or options["preemptible"] or options["filler"]:
        return
    warns = run.get("warn_signal") == options["checkpoint_signal"] and run.get("warn_seconds")
    only = "is only sent as the warning before the time limit" if warns else "is never sent"
    say(f"note: without --preemptible the run does not make way for others, and the checkpoint signal {only}")


def of_spec(options: dict[str, Any]) -> dict[str, Any]:
    """In the words of a Spec."""
    names = ("preemptible", "checkpoint_signal", "grace_s", "warn_signal", "warn_s", "filler")
    from rota.core.warning import saves

    said = saves(options["preemptible"], options["checkpoint_signal"])
    return {"saves": said, **{name: options[name] for name in names if options[name] is not None}}
