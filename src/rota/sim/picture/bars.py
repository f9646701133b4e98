"""A number for each policy, side by side, with how far it strayed from shake to shake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rota.sim.human import span
from rota.sim.picture import font
from rota.sim.picture.canvas import FAINT, INK, Canvas, colour_of, lighter
from rota.sim.picture.frame import RIGHT, WIDTH, heading, short

ROW, BAR, GAP, TOP, BOTTOM = 24, 15, 40, 62, 16


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    value: float
    deviation: float = 0.0  # standard deviation; 0 = it was measured once


def bars(
    groups: Sequence[tuple[str, Sequence[Bar]]], title: str, below: str = "", show: Callable[[float], str] = span
) -> Canvas:
    """One panel a group, each with a scale of its own that begins at 0. `show` writes a value with its unit. The same
    name has the same colour in every panel."""
    names = list(dict.fromkeys(bar.name for _, some in groups for bar in some))
    left = 24 + max((font.width(short(name), 12) for name in names), default=0.0)
    height = TOP + sum(len(some) * ROW + GAP for _, some in groups) + BOTTOM
    canvas = Canvas(WIDTH, height, title)
    heading(canvas, title, below or "the thin line is one standard deviation to either side")
    y = float(TOP)
    for group, some in groups:
        canvas.words(16, y + 13, group, 12, bold=True)
        _panel(canvas, some, names, left, y + 22, show=show)
        y += len(some) * ROW + GAP
    return canvas


def _panel(
    canvas: Canvas, some: Sequence[Bar], names: Sequence[str], left: float, top: float, *, show: Callable[[float], str]
) -> None:
    room = WIDTH - left - RIGHT - 120  # the rest is for the values
    most = max((bar.value + bar.deviation for bar in some), default=0.0) or 1.0
    bottom = top + len(some) * ROW
    for number, bar in enumerate(some):
        y = top + number * ROW + (ROW - BAR) / 2
        middle = y + BAR / 2
        canvas.words(left - 8, middle + 4, short(bar.name), 12, anchor="end")
        colour, dashed = colour_of(names.index(bar.name))
        canvas.box(left, y, room * bar.value / most, BAR, lighter(colour, 0.55 if dashed else 0.15))
        end = left + room * bar.value / most
        if bar.deviation > 0:
            low, high = (left + room * max(0.0, bar.value + sign * bar.deviation) / most for sign in (-1, 1))
            canvas.line([(low, middle), (high, middle)], INK, 1.2)
            for x in (low, high):
                canvas.line([(x, middle - 4), (x, middle + 4)], INK, 1.2)
            end = high
        text = show(bar.value) + (f" ± {show(bar.deviation)}" if bar.deviation > 0 else "")
        canvas.words(end + 8, middle + 4, text, 11, colour=FAINT)
    canvas.line([(left, top), (left, bottom)], INK)
