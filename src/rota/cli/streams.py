"""stdout and stderr, whatever the caller made of them: closed, full, or with nobody reading any more."""

from __future__ import annotations

import os
import sys

from rota.cli.exits import CANNOT_WRITE


def open_closed_ones() -> None:
    """A stream that was closed for us (`>&-`) takes everything and says nothing. A command that we become gets it
    closed, as it was: the number is not inherited."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_WRONLY)
            stream = open(number, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - to the end
            setattr(sys, name, stream)


def write(text: str) -> None:
    """Output of a run as it comes; bytes that are no text were marked as such by the server."""
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def give_up(program: str, error: OSError) -> int:
    """One line about what could not be written or read, and the exit code."""
    what = f"{error.filename}: " if error.filename else "cannot write the output: "
    drop_output()
    try:
        sys.stderr.write(f"{program}: {what}{error.strerror or error}\n")
        sys.stderr.flush()
    except OSError:  # that one is full as well: the code has to say it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return CANNOT_WRITE


def drop_output() -> None:
    """What is still buffered goes nowhere: Python would try once more at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
