"""Did runs take what was expected of them? Held against each other once they have ended well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rota.core.run import Run


@dataclass(frozen=True, slots=True)
class Ran:
    source: str  # what the expectation came from, as Run.expected_from
    expected_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class RunRow:
    source: str
    count: int
    within: float | None  # share that took no longer than expected; 0.75 is right where the past was asked
    ratio: float | None  # taken over expected, the middle one


def ran(run: Run) -> Iterator[Ran]:
    """Nothing where it did not end well, or nobody measured it."""
    for past in run.past[-1:]:
        exit = past.exit
        if exit.ok and exit.started_tick is not None and exit.ended_tick is not None and run.spec.holder is None:
            yield Ran(run.expected_from, run.expected_s, run.attained_s + max(0.0, exit.ended_tick - exit.started_tick))


def run_sheet(runs: Sequence[Ran]) -> tuple[RunRow, ...]:
    """All together first, then by where the expectation came from, most first."""
    sources = sorted({one.source for one in runs}, key=lambda source: -sum(one.source == source for one in runs))
    return (_row("all", runs), *(_row(source, [one for one in runs if one.source == source]) for source in sources))


def _row(source: str, runs: Sequence[Ran]) -> RunRow:
    if not runs:
        return RunRow(source, 0, None, None)
    ratios = sorted(one.took_s / max(1.0, one.expected_s) for one in runs)
    return RunRow(source, len(runs), sum(ratio <= 1.0 for ratio in ratios) / len(runs), ratios[(len(runs) - 1) // 2])
