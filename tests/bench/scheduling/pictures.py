"""The pictures of docs/SCHEDULING.md, from the results alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rota.sim.human import span
from rota.sim.picture import font, ticks
from rota.sim.picture.canvas import FAINT, INK, Canvas, colour_of, lighter
from rota.sim.picture.frame import LEFT, RIGHT, WIDTH, Field, axes, heading, legend
from rota.sim.picture.waits import wait_distribution
from tests.bench.scheduling.results import Results
from tests.bench.scheduling.tables import curve, names, shares
from tests.bench.scheduling.variants import AUTO, EASY, SHOWN, SRTF, TABLE

ROW, BAR, GAP, TOP = 21, 13, 44, 66
LEAST_S = 100.0  # where the axis of mean waits begins


def pictures(results: Results) -> dict[str, Canvas]:
    """By the name of their file."""
    made = {"scheduling-mean-wait": mean_waits(results)}
    for place in names(results):
        known = {name: _waits(results, place, name) for name in SHOWN if results.has(place, name)}
        some = {name: waits for name, waits in known.items() if waits}
        if some:
            made[f"scheduling-waits-{place}"] = wait_distribution(some, f"How long jobs waited: {place}")
    if curve(results):
        made["scheduling-patience"] = trade(results)
    if any(len(shares(results, place)) > 2 for place in names(results)):
        made["scheduling-mixed"] = mixed(results)
    return made


def _waits(results: Results, place: str, name: str) -> list[float]:
    found = results.runs[place][name]
    return next((one["waits"] for one in found.values() if "waits" in one), [])


# -- bars -------------------------------------------------------------------------------------------------------------
def mean_waits(results: Results) -> Canvas:
    """A panel a trace, all on one axis on which each step is a multiple of the one before."""
    places = names(results)
    some = {place: [one.name for one in TABLE if results.has(place, one.name)] for place in places}
    left = 24 + max(font.width(one.name, 12) for one in TABLE)
    most = max(results.mean(place, name, "mean_wait_s") for place in places for name in some[place])
    marks = [(at, word) for at, word in ticks.waits(2 * most) if at >= LEAST_S]
    height = TOP + sum(len(some[place]) * ROW + GAP for place in places) + 10
    canvas = Canvas(WIDTH, height, "Mean wait")
    heading(canvas, "Mean wait", "each step of the axis is a multiple of the one before; the thin line is a deviation")
    top = float(TOP)
    for place in places:
        field = Field(left, top + 18, WIDTH - left - RIGHT - 130, len(some[place]) * ROW, _across(marks[-1][0]), 1.0)
        axes(canvas, field, [(_across(at), word) for at, word in marks], [], "")
        canvas.words(16, top + 10, place, 12, bold=True)
        for number, name in enumerate(some[place]):
            _bar(canvas, field, number, name, _value(results, place, name))
        top += len(some[place]) * ROW + GAP
    return canvas


def _across(seconds: float) -> float:
    return math.log10(max(1.0, seconds / LEAST_S))


def _value(results: Results, place: str, name: str) -> tuple[float, float]:
    return results.mean(place, name, "mean_wait_s"), results.deviation(place, name, "mean_wait_s") or 0.0


def _bar(canvas: Canvas, field: Field, number: int, name: str, measured: tuple[float, float]) -> None:
    value, deviation = measured
    y = field.y + number * ROW + (ROW - BAR) / 2
    middle, end = y + BAR / 2, field.across(_across(value))
    colour = colour_of(0 if name.startswith(AUTO) else 1)[0]
    canvas.words(field.x - 8, middle + 4, name, 12, anchor="end", bold=name == AUTO)
    canvas.box(field.x, y, end - field.x, BAR, lighter(colour, 0.1 if name in (AUTO, EASY) else 0.55))
    if deviation:
        low, high = field.across(_across(value - deviation)), field.across(_across(value + deviation))
        canvas.line([(low, middle), (high, middle)], INK, 1.2)
        for x in (low, high):
            canvas.line([(x, middle - 3), (x, middle + 3)], INK, 1.2)
        end = high
    shown = f"{value:,.0f} s" + (f" ± {deviation:,.0f}" if deviation else "")
    canvas.words(end + 8, middle + 4, shown, 11, colour=FAINT)


# -- curves -----------------------------------------------------------------------------------------------------------
PANEL, BETWEEN, HIGH = 350, 80, 260


def trade(results: Results) -> Canvas:
    """Mean wait to the right, wide gangs upwards: the nearer to the lower left corner, the better."""
    canvas = Canvas(WIDTH, 420, "What patience trades")
    below = (
        "mean wait against the wait that 99 % of wide gangs do not exceed, by patience; the thin line is a deviation"
    )
    heading(canvas, "What patience trades", f"{below}; lower left is better")
    for number, (place, points) in enumerate(curve(results).items()):
        _trade_of(canvas, results, place, points, LEFT + number * (PANEL + BETWEEN))
    return canvas


def _trade_of(canvas: Canvas, results: Results, place: str, points: Sequence[tuple[float, str]], x: float) -> None:
    at = [(f"{value:g}", *_point(results, place, name)) for value, name in points]
    at.append((SRTF, *_point(results, place, SRTF)))
    easy = _point(results, place, EASY)[2]
    least, most = min(mean - off for _, mean, off, _ in at), max(mean + off for _, mean, off, _ in at)
    step = next(one for one in STEPS_S if one >= (most - least) / 4)
    low = step * math.floor(least / step)
    field = Field(x, 84, PANEL, HIGH, most - low + step / 4, 1.15 * max(easy, *(wide for *_, wide in at)))
    marks = [(k * step, f"{low + k * step:,} s") for k in range(8) if k * step <= field.x_end]
    axes(canvas, field, marks, ticks.times(field.y_end, 8), "")
    canvas.words(x, 74, f"{place}: wide gangs p99", 12, bold=True)
    canvas.words(x + PANEL / 2, 84 + HIGH + 36, "mean wait", 11, colour=FAINT, anchor="middle")
    canvas.line([(x, field.up(easy)), (x + PANEL, field.up(easy))], colour_of(1)[0], 1.5, dashed=True)
    canvas.words(x + 6, field.up(easy) + 15, "EASY's gangs", 11, colour=FAINT)
    canvas.line([(field.across(mean - low), field.up(wide)) for _, mean, _, wide in at[:-1]], colour_of(0)[0], 1.5)
    for number, (word, mean, off, wide) in enumerate(at):
        left, up = field.across(mean - low), field.up(wide)
        colour = colour_of(1 if word == SRTF else 0)[0]
        canvas.line([(field.across(mean - off - low), up), (field.across(mean + off - low), up)], lighter(colour, 0.5))
        canvas.box(left - 3, up - 3, 6, 6, colour, hint=f"{word}: {span(mean)}, {span(wide)}")
        right = number % 2 == 0
        canvas.words(
            left + (6 if right else -6), up + (-6 if right else 14), word, 11, anchor="start" if right else "end"
        )


STEPS_S = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 100_000, 10**9)


def _point(results: Results, place: str, name: str) -> tuple[float, float, float]:
    """Mean wait, its deviation, and the wide gangs' p99."""
    return (*_value(results, place, name), results.mean(place, name, "wide_p99_wait_s"))


def mixed(results: Results) -> Canvas:
    """What is left of the gain where only some of the jobs may be stopped."""
    title = "Mixed teams: mean wait as a share of EASY's"
    canvas = Canvas(WIDTH, 400, title)
    heading(canvas, title, "by how many of the jobs may be stopped; at 0 % auto stops nobody")
    lines = {place: shares(results, place) for place in names(results) if len(shares(results, place)) > 2}
    ratios = {
        place: [(share, results.ratio(place, name, EASY, "mean_wait_s")) for share, name in points]
        for place, points in lines.items()
    }
    y_end = 1.1 * max(ratio for points in ratios.values() for _, ratio in points)
    field = Field(LEFT, 92, WIDTH - LEFT - RIGHT, 240, 1.0, y_end)
    step = next(one for one in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if y_end / one <= 8)
    y_ticks = [(k * step, f"{k * step:.2f}x") for k in range(int(y_end / step) + 1)]
    axes(canvas, field, [(k / 4, f"{25 * k} %") for k in range(5)], y_ticks, "of EASY's mean wait")
    entries = []
    for number, (place, points) in enumerate(ratios.items()):
        colour, dashed = colour_of(number)
        entries.append((place, colour, dashed))
        canvas.line([(field.across(share), field.up(ratio)) for share, ratio in points], colour, 2.0, dashed=dashed)
        for share, ratio in points:
            canvas.box(field.across(share) - 3, field.up(ratio) - 3, 6, 6, colour, hint=f"{place}: {ratio:.3f}x")
    legend(canvas, 74, entries)
    canvas.words(LEFT + field.width / 2, 384, "jobs that may be stopped", 11, colour=FAINT, anchor="middle")
    return canvas
