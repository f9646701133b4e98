"""The goals this project set itself for scheduling, and whether these results reach them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rota.sim.human import digits, percent, span
from tests.bench.scheduling import synthetic
from tests.bench.scheduling.results import Results
from tests.bench.scheduling.tables import Rows, exact, names, seconds
from tests.bench.scheduling.variants import AUTO, AUTO_SLOPPY, EASY, NO_STOPS, ORACLE, SJF, SRTF

MEAN_S = {"team16_week": 2250, "team16_2weeks": 1950, "team16_gang": 15_000, "philly_3weeks": 450}
BUSY = {"team16_week": 0.95, "team16_gang": 0.84}
SHORT_S = 300
TURN = 5.0
BESIDE_SJF = 1.05
BESIDE_ORACLE = 1.25  # the moonshot
BESIDE_SRTF = 1.25  # on traces unseen: about as good in the mean as what thinks of nothing but the mean

HEAD = ("goal", "trace", "bar", "reached", "")


@dataclass(frozen=True, slots=True)
class Goal:
    what: str
    place: str
    bar: str
    value: str
    reached: bool

    def row(self) -> list[str]:
        return [self.what, self.place, self.bar, self.value, "yes" if self.reached else "**no**"]


def rows(some: list[Goal]) -> Rows:
    return [one.row() for one in some]


def goals(results: Results) -> list[Goal]:
    found = []
    for place in names(results):
        if place in MEAN_S:
            value = results.mean(place, AUTO, "mean_wait_s")
            found.append(_most("mean wait, auto", place, value, MEAN_S[place], lambda number: f"{seconds(number)} s"))
    for place in names(results):
        value = results.mean(place, AUTO, "short_mean_wait_s")
        found.append(_most("mean wait of jobs declared <= 1 h, auto", place, value, SHORT_S, span, words="< 5 min"))
    for place, share in BUSY.items():
        if results.has(place, AUTO):
            value = results.mean(place, AUTO, "busy_when_full")
            found.append(Goal("busy when full, auto", place, f">= {share:.0%}", percent(value), value >= share))
    for place in names(results):
        found.append(_turn("longest wait / fair turn, auto, worst shake", place, results, AUTO))
    for place in names(results):
        value = results.ratio(place, NO_STOPS, SJF, "mean_wait_s")
        found.append(_most("mean wait beside SJF, auto without stops", place, value, BESIDE_SJF, exact))
    for place in names(results):
        value = results.ratio(place, AUTO_SLOPPY, ORACLE, "mean_wait_s")
        what = "moonshot: mean wait beside the SRTF oracle, auto told sloppy classes"
        found.append(_most(what, place, value, BESIDE_ORACLE, exact))
    return found


def on_unseen(results: Results) -> list[Goal]:
    """The same, as far as it can be said of a trace for which nobody has set a number."""
    found = []
    for kind in synthetic.KINDS:
        place = kind.name
        if not results.has(place, AUTO):
            continue
        beside = [("SRTF", AUTO, SRTF, BESIDE_SRTF), ("SJF", NO_STOPS, SJF, BESIDE_SJF)]
        for word, mine, other, bar in beside:
            value = results.ratio(place, mine, other, "mean_wait_s")
            found.append(_most(f"mean wait beside {word}, {mine}", place, value, bar, exact))
        value = results.mean(place, AUTO, "short_mean_wait_s")
        found.append(_most("mean wait of jobs declared <= 1 h, auto", place, value, SHORT_S, span, words="< 5 min"))
        value = results.ratio(place, AUTO, EASY, "busy_when_full")
        found.append(Goal("busy when full beside EASY, auto", place, ">= 0.95x", exact(value), value >= 0.95))
        found.append(_turn("longest wait / fair turn, auto, worst trace", place, results, AUTO))
    return found


def _most(what: str, place: str, value: float, bar: float, show: Callable[[float], str], *, words: str = "") -> Goal:
    if math.isnan(value):
        return Goal(what, place, words or f"<= {show(bar)}", "not measured", reached=False)
    return Goal(what, place, words or f"<= {show(bar)}", show(value), value < bar if words else value <= bar)


def _turn(what: str, place: str, results: Results, variant: str) -> Goal:
    worst, mean = results.worst(place, variant, "fluid"), results.mean(place, variant, "fluid")
    shown = digits(worst) if results.count(place, variant) == 1 else f"{digits(worst)} (mean {digits(mean)})"
    return Goal(what, place, f"<= {TURN:g}", shown, worst <= TURN)
