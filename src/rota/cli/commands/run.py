"""`rota run`: GPUs for a command of this terminal, which then is this process."""

from __future__ import annotations

import sys

import click

from rota.cli.values import Duration


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-G", "--gpus", type=click.IntRange(0), default=1, show_default=True, help="GPUs to hold; 0 for none.")
@click.option("-J", "--name", default="", help="A name for it in the queue.")
@click.option("--timeout", type=Duration(), help="Give up when no GPUs came within 30s, 10m, 2h, ...")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(gpus: int, name: str, timeout: float | None, command: tuple[str, ...]) -> None:
    """Wait for GPUs of this machine, then become COMMAND.

    The command has this terminal, this directory and environment, gets all signals, and its exit code is the one you
    see. It holds its GPUs for as long as it lives, also when the server is restarted. Everything from its first word on
    is its own. Ctrl-C while waiting leaves the queue.

    \b
    rota run -G 2 -- python train.py --epochs 3
    rota run --timeout 10m nvidia-smi
    """
    from rota.cli.lease.run import run

    sys.exit(run("rota", command, gpus, timeout_s=timeout, name=name))
