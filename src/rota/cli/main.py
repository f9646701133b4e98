"""The `rota` command. Subcommands are imported when they are called, so that `rota --version` starts at once."""

from __future__ import annotations

import importlib

import click

from rota import __version__

# name -> (module under rota.cli.commands, one line for the list)
COMMANDS = {
    "local": ("local", "Run one command on this machine's GPUs through the queue, and wait for it."),
    "attach": ("attach", "Look into a run that has a terminal."),
    "up": ("up", "Show Rota at work: a short demonstration on a simulated 2 x 8 cluster."),
    "history": ("history", "What ran from this data directory, and who used how much."),
}


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=_Lazy)
@click.version_option(__version__, prog_name="rota")
def main() -> None:
    """One fair queue over all the GPUs of a research team."""
