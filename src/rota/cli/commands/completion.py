"""`rota completion`: words and run ids at the press of a key."""

from __future__ import annotations

import click

NAMES = {"bash": "bash_source", "zsh": "zsh_source", "fish": "fish_source"}


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
