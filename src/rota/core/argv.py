"""Commands as lists of words, and as the line that a person gave."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

SHELL = ("/bin/sh", "-c")


def argv_of(command: str) -> tuple[str, ...]:
    return (*SHELL, command)


def command_of(argv: Sequence[str]) -> str:
    """The line as it was given, or the words so quoted that a shell would read them back."""
    if tuple(argv[:2]) == SHELL and len(argv) == 3:
        return argv[2]
    return shlex.join(argv)
