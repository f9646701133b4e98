"""What every chart has: a title, a field between two axes with marks and units, and a legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rota.sim.picture import font
from rota.sim.picture.canvas import FAINT, GRID, INK, Canvas, lighter
from rota.sim.picture.ticks import Tick

WIDTH = 900
LEFT, RIGHT = 74, 20  # beside a field
LONGEST = 24  # letters of a name, where many stand side by side


@dataclass(frozen=True, slots=True)
class Field:
    """A part of a canvas with a scale in each direction; values of `y` grow upwards."""

    x: float
    y: float
    width: float
    height: float
    x_end: float
    y_end: float

    def across(self, value: float) -> float:
        return self.x + self.width * (value / self.x_end if self.x_end else 0.0)

    def up(self, value: float) -> float:
        return self.y + self.height * (1 - (value / self.y_end if self.y_end else 0.0))


def heading(canvas: Canvas, title: str, below: str = "") -> None:
    canvas.words(16, 26, title, 15, bold=True)
    if below:
        canvas.words(16, 45, below, 11, colour=FAINT)


def axes(canvas: Canvas, field: Field, x_ticks: Sequence[Tick], y_ticks: Sequence[Tick], y_name: str) -> None:
    """The grid, the marks, and the name of the vertical axis. What is drawn later lies on top."""
    for at, word in y_ticks:
        y = field.up(at)
        canvas.line([(field.x, y), (field.x + field.width, y)], GRID)
        canvas.words(field.x - 8, y + 4, word, 11, colour=FAINT, anchor="end")
    for at, word in x_ticks:
        x = field.across(at)
        canvas.line([(x, field.y), (x, field.y + field.height)], lighter(GRID, 0.4))
        if word:
            canvas.words(x, field.y + field.height + 17, word, 11, colour=FAINT, anchor="middle")
    bottom = field.y + field.height
    canvas.line([(field.x, field.y), (field.x, bottom), (field.x + field.width, bottom)], INK)
    canvas.words(20, field.y + field.height / 2, y_name, 11, anchor="middle", upright=True)


def legend(
    canvas: Canvas, y: float, entries: Sequence[tuple[str, str, bool]], *, x: float = LEFT, boxes: bool = False
) -> float:
    """Names with a piece of their line, or a box of their colour; as many rows as they need. The last row's height."""
    at = x
    for name, colour, dashed in entries:
        shown = short(name)
        wide = font.width(shown, 11) + 46
        if at + wide > canvas.width and at > x:
            at, y = x, y + 18
        if boxes:
            canvas.box(at + 6, y - 9, 12, 11, colour)
        else:
            canvas.line([(at, y - 4), (at + 22, y - 4)], colour, 2.5, dashed=dashed)
        canvas.words(at + 28, y, shown, 11)
        at += wide
    return y


def rows_of_legend(width: float, names: Sequence[str], x: float = LEFT) -> int:
    """How many rows `legend` will take, so that room can be left for it."""
    at, rows = x, 1
    for name in names:
        wide = font.width(short(name), 11) + 46
        if at + wide > width and at > x:
            at, rows = x, rows + 1
        at += wide
    return rows


def short(name: str, most: int = LONGEST) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
