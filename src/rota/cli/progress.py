"""One line about what is being waited for: it rewrites itself on a terminal, and comes now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

EVERY_S = 30.0  # without a terminal: not more often, unless the words change


class Progress:
    """On stderr, so that the output of the run stays alone on stdout."""

    def __init__(self, quiet: bool = False, program: str = "rota") -> None:
        self.quiet = quiet
        self.live = _is_tty()  # whether a line can be rewritten
        self._program = program
        self._shown = ""
        self._width = 0
        self._next = 0.0

    def show(self, text: str, key: str = "") -> None:
        """`key`: what has to change for another line where lines cannot be rewritten."""
        if self.quiet or text == self._shown:
            return
        if self.live:
            line = f"{self._program}: {text}"[: _columns() - 1]
            self._write("\r" + line + " " * max(0, self._width - len(line)))
            self._width = len(line)
        elif (key or text) != self._shown or time.monotonic() >= self._next:
            self._write(f"{self._program}: {text}\n")
            self._next = time.monotonic() + EVERY_S
        self._shown = text if self.live else key or text

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self._write(f"{self._program}: {text}\n")

    def clear(self) -> None:
        """Make room for something else."""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
        self._width, self._shown = 0, ""

    def _write(self, text: str) -> None:
        with suppress(OSError):
            os.write(2, text.encode("utf-8", "replace"))


def _is_tty() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:
        return False


def _columns() -> int:
    try:
        return max(20, os.get_terminal_size(2).columns or 80)
    except OSError:
        return 80
