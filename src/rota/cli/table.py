"""Tables: columns on a terminal, cut to its width and coloured; the same words without both in a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from unicodedata import east_asian_width

import click

from rota.cli.render import plain

GAP = "  "
COLOURS = {
    "running": "green",
    "finished": "green",
    "available": "green",
    "ok": "green",
    "launching": "cyan",
    "queued": "yellow",
    "ready": "yellow",
    "held": "yellow",
    "warn": "yellow",
    "failed": "red",
    "error": "red",
    "offline": "red",
    "fail": "red",
    "stopped": "magenta",
}


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> str:
    """`right`: the heads of columns whose content stands to the right. The last column may be cut."""
    cells = [[plain(cell) for cell in row] for row in rows]
    sizes = [max([_width(head), *(_width(row[i]) for row in cells)]) for i, head in enumerate(heads)]
    limit = _terminal()
    lines = [_line(heads, heads, sizes, right, limit, is_head=True)]
    lines += [_line(row, heads, sizes, right, limit) for row in cells]
    return "\n".join(lines)


def facts(pairs: Sequence[tuple[str, object]]) -> str:
    """One fact a line, or its own lines one below the other; what is empty is left out."""
    shown = [(name, str(value).rstrip("\n").split("\n")) for name, value in pairs if value not in (None, "", "-")]
    size = max((len(name) for name, _ in shown), default=0)
    made = []
    for name, lines in shown:
        made += [f"{name:{size}}  {plain(lines[0])}"]
        made += [f"{'':{size}}  {plain(line)}".rstrip() for line in lines[1:]]  # indented: no line passes for a fact
    return "\n".join(made)


def colours() -> bool:
    """NO_COLOR set to anything but nothing turns colour off: no-color.org."""
    return _tty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _line(
    cells: Sequence[str],
    heads: Sequence[str],
    sizes: Sequence[int],
    right: Sequence[str],
    limit: int,
    *,
    is_head: bool = False,
) -> str:
    made, used = [], 0
    for i, cell in enumerate(cells):
        last = i == len(cells) - 1
        text = _cut(cell, max(8, limit - used)) if last and limit else cell
        space = " " * (sizes[i] - _width(text))
        padded = f"{space}{text}" if heads[i] in right else text if last else f"{text}{space}"
        used += sizes[i] + len(GAP)
        made.append(_paint(padded, "" if is_head else cell, is_head))
    return GAP.join(made).rstrip()


def _paint(text: str, word: str, is_head: bool) -> str:
    if not colours():
        return text
    return click.style(text, bold=True) if is_head else click.style(text, fg=COLOURS[word]) if word in COLOURS else text


def _cut(text: str, room: int) -> str:
    if _width(text) <= room:
        return text
    while text and _width(text) >= room:
        text = text[:-1]
    return text + "…"


def _width(text: str) -> int:
    return len(text) if text.isascii() else sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def _tty() -> bool:
    try:
        return sys.stdout is not None and sys.stdout.isatty()
    except ValueError:  # closed
        return False


def _terminal() -> int:
    """Its columns; 0 = no terminal, nothing is cut."""
    if not _tty():
        return 0
    import shutil

    return shutil.get_terminal_size((100, 24)).columns
