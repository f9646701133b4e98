"""`rota srun`: the same as the srun that `rota shims install` puts on the PATH."""

from __future__ import annotations

import sys

import click


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    add_help_option=False,
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def command(words: tuple[str, ...]) -> None:
    """GPUs for a command of this terminal: srun [-n N] command, srun status, srun jobs."""
    from rota.cli.slurm.srun import main

    sys.exit(main(words))
