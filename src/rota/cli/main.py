"""The `rota` command. Subcommands are imported when they are called, so that `rota --version` starts at once."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from rota import __version__
from rota.cli import streams
from rota.client.errors import RotaError

# section -> name -> (module under rota.cli.commands, one line for the list)
SECTIONS = {
    "Run something": {
        "submit": ("submit", "Put a command into the queue."),
        "run": ("run", "Wait for GPUs of this machine, then become the command: its exit code, signals, terminal."),
        "srun": ("srun", "The same in the words of srun: srun -n 2 command, srun status, srun jobs."),
        "sweep": ("sweep", "One command over a grid of parameters."),
        "rerun": ("rerun", "The same once more, if wanted from the code it was submitted from."),
        "reserve": ("reserve", "Keep GPUs for a time; the calendar of what is kept."),
        "local": ("local", "Run one command on this machine's GPUs through the queue, without a server."),
    },
    "Look": {
        "queue": ("queue", "What runs, and what waits, in order."),
        "show": ("show", "All that is known of one run."),
        "logs": ("logs", "What a run wrote."),
        "attach": ("attach", "Look into a run that has a terminal."),
        "explain": ("explain", "Why a run waits, and what would start it."),
        "eta": ("eta", "When a run is expected to start."),
        "gpus": ("gpus", "A picture of every GPU and who holds it."),
        "nodes": ("nodes", "The machines, and taking one out of service."),
        "top": ("top", "GPUs, queue and your runs, live in this terminal."),
        "history": ("history", "What ran, and who used how much."),
        "usage": ("usage", "GPU-hours per person."),
        "simulate": ("simulate", "What other policies would make of the same jobs: a trace, or this server's history."),
    },
    "Change": {
        "cancel": ("cancel", "End runs, waiting or running."),
        "hold": ("hold", "Keep waiting runs from starting."),
        "release": ("release", "Let held runs go."),
        "priority": ("priority", "What goes first."),
        "policy": ("policy", "How is scheduled."),
    },
    "Set up": {
        "up": ("up", "Start Rota on this machine and say what to do next."),
        "serve": ("serve", "The server, in the foreground, for scripts and service managers."),
        "service": ("service", "Let systemd keep the server running."),
        "login": ("login", "Keep a token for this account."),
        "logout": ("logout", "Forget the token that login kept."),
        "whoami": ("whoami", "Who the server takes you for."),
        "token": ("token", "Tokens of people and agents."),
        "doctor": ("doctor", "What is well here, what is not, and what to do about it."),
        "config": ("config", "The settings, and where each came from."),
        "completion": ("completion", "Words and run ids at the press of a key, for your shell."),
        "shims": ("shims", "Put srun, sbatch, squeue, scancel, sinfo and sacct on the PATH, or take them away."),
        "skill": ("skill", "What a coding agent should know about Rota, to print or to install."),
    },
}
COMMANDS = {name: row for section in SECTIONS.values() for name, row in section.items()}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"rota.cli.commands.{COMMANDS[cmd_name][0]}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = [f"`rota {name}`" for name in get_close_matches(args[0], COMMANDS, 3)]
            hint = f"did you mean {' or '.join(near)}?" if near else "`rota --help` lists them."
            raise click.UsageError(f"No such command {args[0][:50]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, rows in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in rows.items()])

    def main(self, *args: Any, **named: Any) -> Any:
        """A closed stdout is written to in peace, a full one is one line and an exit code, whichever command it was."""
        streams.open_closed_ones()
        try:
            return super().main(*args, **named)
        except OSError as error:
            sys.exit(streams.give_up("rota", error))

    def invoke(self, ctx: click.Context) -> object:
        """What goes wrong on the way to the server is one line and an exit code, whichever command it was."""
        try:
            return super().invoke(ctx)
        except RotaError as error:
            from rota.cli.connect import fail

            sys.exit(fail(error))
        except KeyboardInterrupt:
            sys.exit(130)


@click.command(cls=_Lazy)
@click.version_option(__version__, prog_name="rota")
def main() -> None:
    """One fair queue over all the GPUs of a research team."""
