"""A row of the benchmark table: ours, the peer or limit of the same run, the ratio, and the goals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    number: str  # in the list of dispatch goals
    what: str
    ours: str
    peer: str  # peer or physical limit, taken in the same run
    ratio: str
    goal: str
    moonshot: str
    verdict: str  # "moonshot", "goal", "below"


def verdict(value: float, goal: float, moonshot: float | None, *, more_is_better: bool) -> str:
    def reached(bar: float) -> bool:
        return value >= bar if more_is_better else value <= bar

    if moonshot is not None and reached(moonshot):
        return "moonshot"
    return "goal" if reached(goal) else "below"


def percentile(values: Sequence[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]


def render(rows: Sequence[Row]) -> str:
    head = ("row", "workload", "Rota", "peer or limit, same run", "ratio", "goal", "moonshot", "reached")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for r in rows:
        cells = (r.number, r.what, r.ours, r.peer, r.ratio, r.goal, r.moonshot, r.verdict)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
