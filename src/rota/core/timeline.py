"""When the running attempts are expected to end, sorted, and what each gives back: the stuff of reservations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from rota.core.resources import Placement


class Timeline:
    def __init__(self) -> None:
        self._ends: list[tuple[float, str]] = []
        self._placements: list[Placement] = []  # beside _ends, so that a walk looks nothing up
        self._of: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def put(self, run_id: str, end: float, placement: Placement) -> None:
        self.drop(run_id)
        at = bisect_left(self._ends, (end, run_id))
        self._ends.insert(at, (end, run_id))
        self._placements.insert(at, placement)
        self._of[run_id] = end

    def drop(self, run_id: str) -> None:
        end = self._of.pop(run_id, None)
        if end is not None:
            at = bisect_left(self._ends, (end, run_id))
            del self._ends[at]
            del self._placements[at]

    def __iter__(self) -> Iterator[tuple[float, str]]:
        return iter(self._ends)

    def given_back(self) -> Iterator[tuple[float, Placement]]:
        for (end, _), placement in zip(self._ends, self._placements, strict=True):
            yield end, placement

    def first(self) -> tuple[float, str] | None:
        return self._ends[0] if self._ends else None

    def copy(self) -> Timeline:
        twin = Timeline()
        twin._ends = self._ends.copy()
        twin._placements = self._placements.copy()
        twin._of = self._of.copy()
        return twin
