"""How many GPUs did useful work, and how many were wanted, over time: one panel a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rota.sim.picture import ticks
from rota.sim.picture.canvas import FAINT, INK, PALETTE, Canvas, lighter
from rota.sim.picture.frame import LEFT, RIGHT, WIDTH, Field, axes, heading, legend

PANEL, GAP, TOP, BOTTOM = 110, 34, 104, 44
CUT = 2.0  # demand is shown up to so many times the cluster
USEFUL, WANTED = lighter(PALETTE[0], 0.35), PALETTE[1]


@dataclass(frozen=True, slots=True)
class Panel:
    """Means over equal bins from 0 to the chart's end."""

    name: str
    useful: Sequence[float]
    demand: Sequence[float]


def utilisation(panels: Sequence[Panel], gpus: int, end_s: float, title: str = "GPUs at work over time") -> Canvas:
    canvas = Canvas(WIDTH, TOP + len(panels) * (PANEL + GAP) + BOTTOM - GAP, title)
    heading(canvas, title, f"{gpus:,} GPUs; what is wanted (running + waiting) is cut at {CUT:g}x the cluster")
    legend(canvas, 72, [("useful work", USEFUL, False), ("wanted", WANTED, False), ("the cluster", INK, True)])
    x_ticks = ticks.times(end_s)
    for number, panel in enumerate(panels):
        last = number == len(panels) - 1
        top = TOP + number * (PANEL + GAP)
        field = Field(LEFT, top, WIDTH - LEFT - RIGHT, PANEL, end_s, gpus * CUT)
        marks = x_ticks if last else [(at, "") for at, _ in x_ticks]
        axes(canvas, field, marks, [(0, "0"), (gpus, f"{gpus:,}"), (gpus * CUT, f"{gpus * CUT:,.0f}")], "GPUs")
        canvas.words(LEFT + 6, top - 5, panel.name, 12, bold=True)
        _fill(canvas, field, panel.useful)
        _steps(canvas, field, panel.demand)
        canvas.line([(LEFT, field.up(gpus)), (LEFT + field.width, field.up(gpus))], INK, dashed=True)
    canvas.words(LEFT + (WIDTH - LEFT - RIGHT) / 2, canvas.height - 8, "time", 11, colour=FAINT, anchor="middle")
    return canvas


def _fill(canvas: Canvas, field: Field, values: Sequence[float]) -> None:
    """Equal neighbours become one box."""
    wide = field.width / max(1, len(values))
    start = 0
    for i in range(1, len(values) + 1):
        if i < len(values) and values[i] == values[start]:
            continue
        if values[start] > 0:
            y = field.up(min(values[start], field.y_end))
            left = field.x + start * wide
            canvas.box(left, y, field.x + i * wide - left, field.y + field.height - y, USEFUL)
        start = i


def _steps(canvas: Canvas, field: Field, values: Sequence[float]) -> None:
    wide = field.width / max(1, len(values))
    points: list[tuple[float, float]] = []
    for i, value in enumerate(values):
        y = field.up(min(value, field.y_end))
        if points and points[-1][1] == y:
            points[-1] = (field.x + (i + 1) * wide, y)
        else:
            points += [(field.x + i * wide, y), (field.x + (i + 1) * wide, y)]
    if points:
        canvas.line(points, WANTED, 1.2)
