"""`rota completion`: words and run ids at the press of a key."""

from __future__ import annotations

import os

import click

NAMES = {"bash": "bash_source", "zsh": "zsh_source", "fish": "fish_source"}
# commands whose argument is a run, and which states make sense there
RUNS = ("show", "logs", "cancel", "hold", "release", "priority", "explain", "eta", "rerun", "attach")
SHOWN = 50


@click.command()
@click.argument("shell", type=click.Choice(sorted(NAMES)))
def command(shell: str) -> None:
    """Print what makes SHELL complete `rota`.

    \b
    bash   echo 'eval "$(rota completion bash)"' >> ~/.bashrc
    zsh    echo 'eval "$(rota completion zsh)"' >> ~/.zshrc
    fish   rota completion fish > ~/.config/fish/completions/rota.fish
    """
    from click.shell_completion import get_completion_class

    from rota.cli.main import main

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "rota", "_ROTA_COMPLETE").source())


def run_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[object]:
    """The ids of live and recent runs, from the server, within the time a key press allows."""
    from click.shell_completion import CompletionItem

    from rota.cli.connect import connect
    from rota.cli.render import plain
    from rota.client.errors import RotaError

    try:
        with connect(os.environ.get("ROTA_URL", ""), connect_s=0.3, answer_s=0.7, tries=1) as client:
            found = [run for run in client.runs_page(limit=1000) if run.id.startswith(incomplete)]
    except RotaError:
        return []
    return [CompletionItem(run.id, help=plain(f"{run.status} {run.name}")[:60]) for run in found[:SHOWN]]
