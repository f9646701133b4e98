"""How long jobs waited: of each policy the share of jobs that had to wait no longer than so."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import log10

from rota.sim.picture import ticks
from rota.sim.picture.canvas import FAINT, Canvas, colour_of
from rota.sim.picture.frame import LEFT, RIGHT, WIDTH, Field, axes, heading, legend, rows_of_legend

HEIGHT = 300
POINTS = 400  # of a curve


def wait_distribution(waits: Mapping[str, Sequence[float]], title: str = "How long jobs waited") -> Canvas:
    """`waits` in seconds, by policy. Jobs that did not wait at all are where a curve begins, on the left."""
    top = 66 + 18 * rows_of_legend(WIDTH, list(waits))
    canvas = Canvas(WIDTH, top + HEIGHT + 56, title)
    heading(canvas, title, "share of jobs that waited at most so long; the higher and the further left, the better")
    longest = max((max(some, default=0.0) for some in waits.values()), default=0.0)
    marks = ticks.waits(longest)
    field = Field(LEFT, top, WIDTH - LEFT - RIGHT, HEIGHT, max(1e-9, log10(marks[-1][0])), 100.0)
    shares = [(at, f"{at} %") for at in (0, 25, 50, 75, 100)]
    axes(canvas, field, [(log10(at), word) for at, word in marks], shares, "share of jobs")
    named = []
    for number, (name, some) in enumerate(waits.items()):
        colour, dashed = colour_of(number)
        named.append((name, colour, dashed))
        canvas.line(_curve(field, sorted(some)), colour, 2.0, dashed=dashed)
    legend(canvas, 70, named)
    canvas.words(LEFT + field.width / 2, canvas.height - 12, "wait", 11, colour=FAINT, anchor="middle")
    return canvas


def _curve(field: Field, ranked: Sequence[float]) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for step in range(POINTS + 1):
        value = field.x_end * step / POINTS
        share = 100.0 * bisect_right(ranked, 10.0**value * (1 + 1e-9)) / max(1, len(ranked))
        points.append((field.across(value), field.up(share)))
    kept = [p for a, p, b in zip(points, points[1:], points[2:], strict=False) if not a[1] == p[1] == b[1]]
    return [points[0], *kept, points[-1]]
