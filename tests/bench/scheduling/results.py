"""What is kept of the simulations: plain numbers in one JSON file, from which all else is made."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

FORMAT = 1

Outcomes = dict[str, dict[str, Any]]  # the number of the shake, as text -> the measures


@dataclass(slots=True)
class Results:
    made: dict[str, Any] = field(default_factory=dict)  # when, on what, with how many shakes
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)  # of each trace
    runs: dict[str, dict[str, Outcomes]] = field(default_factory=dict)  # trace -> variant -> its outcomes

    def keep(self, place: str, variant: str, number: int, outcome: Mapping[str, Any]) -> None:
        self.runs.setdefault(place, {}).setdefault(variant, {})[str(number)] = dict(outcome)

    def has(self, place: str, variant: str) -> bool:
        return bool(self.runs.get(place, {}).get(variant))

    def values(self, place: str, variant: str, what: str, only: Outcomes | None = None) -> list[float]:
        """One a shake, in their order. `only`: of those shakes that are in there too."""
        found = self.runs.get(place, {}).get(variant, {})
        numbers = sorted((one for one in found if only is None or one in only), key=int)
        return [found[one][what] for one in numbers if found[one][what] is not None]

    def mean(self, place: str, variant: str, what: str) -> float:
        values = self.values(place, variant, what)
        return fmean(values) if values else math.nan

    def deviation(self, place: str, variant: str, what: str) -> float | None:
        values = self.values(place, variant, what)
        return stdev(values) if len(values) > 1 else None

    def worst(self, place: str, variant: str, what: str) -> float:
        return max(self.values(place, variant, what), default=math.nan)

    def ratio(self, place: str, variant: str, other: str, what: str) -> float:
        """Of means over the shakes that both have played."""
        mine, theirs = self.runs[place].get(variant, {}), self.runs[place].get(other, {})
        above, below = self.values(place, variant, what, theirs), self.values(place, other, what, mine)
        return fmean(above) / fmean(below) if above and below and fmean(below) else math.nan

    def count(self, place: str, variant: str) -> int:
        return len(self.runs[place][variant])

    def write(self, path: Path) -> None:
        """All of it or none: a reader never sees half a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.new")
        value = {"format": FORMAT, "made": self.made, "facts": self.facts, "runs": self.runs}
        beside.write_text(json.dumps(value))
        beside.replace(path)


def read(path: Path) -> Results:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: are no results: {error}") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise SystemExit(f"{path}: format: is not {FORMAT}; make the results anew with make bench-scheduling")
    return Results(value["made"], value["facts"], value["runs"])


def told(number: float, show: Callable[[float], str]) -> str:
    return "-" if math.isnan(number) else show(number)


def whole_rounds(results: Results, expected: Mapping[str, Mapping[str, int]]) -> None:
    """Of a run that was cut short leave only shakes that all have played. `expected`: of each trace its variants, and
    how many shakes each plays at most. What is played once is left as far as it came."""
    for place, variants in expected.items():
        found = results.runs.get(place, {})
        if any("0" in of for of in found.values()):
            continue
        most = max((int(number) for of in found.values() for number in of), default=0)
        while most and not all(
            str(number) in found.get(name, {})
            for name, bound in variants.items()
            for number in range(1, min(most, bound) + 1)
        ):
            most -= 1
        for of in found.values():
            for number in [one for one in of if int(one) > most]:
                del of[number]
        if not most:
            results.runs.pop(place, None)
