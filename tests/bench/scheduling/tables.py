"""The results as tables of text, which are Markdown as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rota.sim.human import digits, percent, span
from tests.bench.scheduling import synthetic
from tests.bench.scheduling.results import Results, told
from tests.bench.scheduling.variants import (
    AUTO,
    EASY,
    HALF,
    MIXED,
    NO_STOPS,
    ON_UNSEEN,
    PATIENCES,
    PATIENT,
    SRTF,
    TABLE,
    Variant,
)
from tests.bench.scheduling.workload import LARGE, TEAMS

Rows = list[list[str]]

WAITS = ("policy", "mean wait, s", "of EASY's", "p50", "p95", "declared <= 1 h", "> 5 min", "ran > 10 min")
OTHERS = (
    "policy",
    "busy when full",
    "wide gangs p99",
    "of EASY's",
    "wait / fair turn, mean (worst)",
    "same, strict reading",
    "stops",
    "worst user / mean",
    "Jain",
)


def table(head: Sequence[str], rows: Rows) -> str:
    wide = [max(len(row[at]) for row in [list(head), *rows]) for at in range(len(head))]
    lines = [" | ".join(cell.ljust(w) for cell, w in zip(row, wide, strict=True)) for row in [list(head), *rows]]
    return "\n".join(f"| {line} |" for line in [lines[0], " | ".join("-" * w for w in wide), *lines[1:]])


def names(results: Results) -> list[str]:
    """The real traces that were played, in their order."""
    return [name for name, _ in (*TEAMS, LARGE) if results.has(name, EASY) and results.has(name, AUTO)]


def seconds(number: float) -> str:
    return f"{number:,.0f}"


def times(number: float) -> str:
    return f"{digits(number)}x"


def two(number: float) -> str:
    return f"{number:.2f}"


def exact(number: float) -> str:
    """A ratio that is compared with 1."""
    return f"{number:.2f}x" if number < 9.995 else times(number)


def with_deviation(results: Results, place: str, variant: str, what: str, show: Callable[[float], str]) -> str:
    deviation = results.deviation(place, variant, what)
    text = told(results.mean(place, variant, what), show)
    return text if deviation is None else f"{text} ({show(deviation)})"


def _label(results: Results, place: str, variant: Variant) -> str:
    most = max(results.count(place, one.name) for one in TABLE if results.has(place, one.name))
    count = results.count(place, variant.name)
    fewer = f" ({count} shakes)" if count < most else ""
    text = f"{variant.name}{fewer}"
    return f"**{text}**" if variant.name == AUTO else text


def waits(results: Results, place: str, some: Sequence[Variant] = TABLE) -> Rows:
    rows = []
    for variant in some:
        name = variant.name
        if results.has(place, name):
            rows.append(
                [
                    _label(results, place, variant),
                    with_deviation(results, place, name, "mean_wait_s", seconds),
                    told(results.ratio(place, name, EASY, "mean_wait_s"), times),
                    told(results.mean(place, name, "p50_wait_s"), span),
                    told(results.mean(place, name, "p95_wait_s"), span),
                    told(results.mean(place, name, "short_mean_wait_s"), span),
                    told(results.mean(place, name, "share_over_5min"), percent),
                    told(results.mean(place, name, "long_mean_wait_s"), span),
                ]
            )
    return rows


def others(results: Results, place: str, some: Sequence[Variant] = TABLE) -> Rows:
    rows = []
    for variant in some:
        name = variant.name
        if results.has(place, name):
            rows.append(
                [
                    _label(results, place, variant),
                    told(results.mean(place, name, "busy_when_full"), percent),
                    told(results.mean(place, name, "wide_p99_wait_s"), span),
                    told(results.ratio(place, name, EASY, "wide_p99_wait_s"), exact),
                    _starved(results, place, name, "fluid"),
                    _starved(results, place, name, "starvation"),
                    told(results.mean(place, name, "preemptions"), seconds),
                    told(results.mean(place, name, "worst_user_over_mean"), two),
                    told(results.mean(place, name, "jain"), two),
                ]
            )
    return rows


def _starved(results: Results, place: str, name: str, what: str) -> str:
    mean, worst = results.mean(place, name, what), results.worst(place, name, what)
    return f"{digits(mean)} ({digits(worst)})" if results.count(place, name) > 1 else digits(mean)


PATIENCE = ("trace", "patience", "mean wait, s", "of EASY's", "wide gangs p99", "of EASY's", "wait / fair turn")


def patience(results: Results) -> Rows:
    """The trade between the mean and wide gangs."""
    rows = []
    for place, points in curve(results).items():
        for value, name in points:
            rows.append(
                [
                    place,
                    f"**{value:g}**" if name == AUTO else f"{value:g}",
                    with_deviation(results, place, name, "mean_wait_s", seconds),
                    told(results.ratio(place, name, EASY, "mean_wait_s"), times),
                    told(results.mean(place, name, "wide_p99_wait_s"), span),
                    told(results.ratio(place, name, EASY, "wide_p99_wait_s"), exact),
                    _starved(results, place, name, "fluid"),
                ]
            )
    return rows


def curve(results: Results) -> dict[str, list[tuple[float, str]]]:
    """trace -> (patience, the variant that has it)"""
    named = {one.patience: one.name for one in PATIENT}
    found = {}
    for place in names(results):
        points = [(value, named.get(value, AUTO)) for value in PATIENCES]
        known = [(value, name) for value, name in points if results.has(place, name)]
        if len(known) > 1:
            found[place] = known
    return found


MIX = ("may be stopped", "of the GPU time", "mean wait, s", "of EASY's", "of SRTF's", "wait / fair turn", "stops")


def mixed(results: Results, place: str) -> Rows:
    rows = []
    for share, name in shares(results, place):
        rows.append(
            [
                f"{share:.0%} of the jobs".replace("%", " %"),
                percent(results.mean(place, name, "stoppable")) if 0 < share < 1 else f"{share:.0%}".replace("%", " %"),
                with_deviation(results, place, name, "mean_wait_s", seconds),
                told(results.ratio(place, name, EASY, "mean_wait_s"), times),
                told(results.ratio(place, name, SRTF, "mean_wait_s"), times),
                _starved(results, place, name, "fluid"),
                told(results.mean(place, name, "preemptions"), seconds),
            ]
        )
    return rows


def shares(results: Results, place: str) -> list[tuple[float, str]]:
    """Share of the jobs that may be stopped, and the variant of it."""
    some = [(0.0, NO_STOPS), (0.5, HALF), (1.0, AUTO), *((one.preemptible, one.name) for one in MIXED)]
    return sorted((share, name) for share, name in some if results.has(place, name))


UNSEEN = (
    "kind",
    "policy",
    "mean wait, s",
    "of EASY's",
    "declared <= 1 h",
    "busy when full",
    "wide gangs p99",
    "of EASY's",
    "wait / fair turn",
    "Jain",
)


def unseen(results: Results) -> Rows:
    rows = []
    for kind in synthetic.KINDS:
        for variant in ON_UNSEEN:
            name = variant.name
            if results.has(kind.name, name):
                rows.append(
                    [
                        kind.name,
                        f"**{name}**" if name == AUTO else name,
                        with_deviation(results, kind.name, name, "mean_wait_s", seconds),
                        told(results.ratio(kind.name, name, EASY, "mean_wait_s"), times),
                        told(results.mean(kind.name, name, "short_mean_wait_s"), span),
                        told(results.mean(kind.name, name, "busy_when_full"), percent),
                        told(results.mean(kind.name, name, "wide_p99_wait_s"), span),
                        told(results.ratio(kind.name, name, EASY, "wide_p99_wait_s"), exact),
                        _starved(results, kind.name, name, "fluid"),
                        told(results.mean(kind.name, name, "jain"), two),
                    ]
                )
    return rows
