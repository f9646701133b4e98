"""stdout and stderr, whatever the caller made of them: closed, full, or with nobody reading any more."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

from rota.cli.exits import CANNOT_WRITE

if TYPE_CHECKING:
    import re

# Colours, and the few movements of the cursor that bars of progress make; all else that is no text steers the terminal:
# its title, its clipboard, or what it types into the shell.
HARMLESS = r"\x1b\[[0-9;:]{0,30}[A-DGKm]"
# Bars hide the cursor and show it again. That is left out: a run that is killed would leave it hidden.
CURSOR = r"\x1b\[\?25[hl]"
STEERING = rf"({HARMLESS})|({CURSOR})|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
UNFINISHED = r"\x1b(?:\[(?:[0-9;:]{0,30}|\?2?5?))?\Z"


def open_closed_ones() -> None:
    """A stream that was closed for us (`>&-`) takes everything and says nothing. A command that we become gets it
    closed, as it was: the number is not inherited."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_WRONLY)
            stream = open(number, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - to the end
            setattr(sys, name, stream)


def write(output: str | bytes) -> None:
    """Write output of a run as it comes; in text, bytes that are none were marked as such by the server. A run may be
    anybody's, so on a terminal what would steer it is only shown. A pipe gets everything."""
    if sys.stdout.isatty():
        text = output if isinstance(output, str) else output.decode("utf-8", "replace")
        output = _terminal().harmless(text)
    sys.stdout.buffer.write(output.encode("utf-8", "replace") if isinstance(output, str) else output)
    sys.stdout.buffer.flush()


class Terminal:
    """What may be written to one, of a text that comes in pieces."""

    def __init__(self) -> None:
        import re  # most commands write no output of a run

        self._steering, self._unfinished = re.compile(STEERING), re.compile(UNFINISHED)
        self._kept = ""  # the beginning of a sequence, until the rest of it comes

    def harmless(self, text: str) -> str:
        text = self._kept + text
        unfinished = self._unfinished.search(text)
        self._kept = unfinished[0] if unfinished else ""
        return self._steering.sub(_shown, text.removesuffix(self._kept))


@lru_cache(maxsize=1)
def _terminal() -> Terminal:
    return Terminal()


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0][0])
    if found[1]:
        return found[1]
    if found[2]:
        return ""
    if code < 0x20:
        return chr(0x2400 + code)  # SYMBOL FOR ...
    return "\N{SYMBOL FOR DELETE}" if code == 0x7F else "\N{REPLACEMENT CHARACTER}"


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
