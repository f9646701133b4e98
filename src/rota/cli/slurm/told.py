"""The command of a batch job as its owner knows it: the script's name and its arguments, without what carries them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rota.cli.slurm.output import WRAPPER

if TYPE_CHECKING:
    from rota.client.model.run import Run

BEFORE_COMMAND = 8  # sh -c WRAPPER sbatch, three files and how they are opened
SCRIPT = "#!"


def told(run: Run) -> str:
    """What was submitted; a script's text is behind `rota show --full`. Any other run's command as it is."""
    return line(run.command, run.name, f"  (its text: rota show --full {run.id})")


def line(command: str, name: str = "", behind: str = "") -> str:
    """The same from a command alone; `behind`: what follows on the name of a script."""
    try:
        words = shlex.split(command)
    except ValueError:  # a line for the shell need not be one that can be split
        return command
    bare = words[BEFORE_COMMAND:] if words[:3] == ["/bin/sh", "-c", WRAPPER] else words
    at = next((i for i, word in enumerate(bare[:-1]) if word == "-c"), None)
    if at is not None and bare[at + 1].startswith(SCRIPT):
        args = bare[at + 2 :]
        named = args if not _python(bare[at - 1]) else [name or "script", *args]
        return shlex.join(named) + behind
    return command if bare is words else shlex.join(bare)


def _python(program: str) -> bool:
    """Its -c takes no word for the script's name, see script.py."""
    return program.rpartition("/")[2].startswith(("python", "pypy"))
