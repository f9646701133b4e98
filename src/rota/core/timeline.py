"""When the running attempts are expected to end, sorted: the raw material of reservations."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class Timeline:
    def __init__(self) -> None:
        self._ends: list[tuple[float, str]] = []
        self._of: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def put(self, run_id: str, end: float) -> None:
        self.drop(run_id)
        insort(self._ends, (end, run_id))
        self._of[run_id] = end

    def drop(self, run_id: str) -> None:
        end = self._of.pop(run_id, None)
        if end is not None:
            del self._ends[bisect_left(self._ends, (end, run_id))]

    def __iter__(self) -> Iterator[tuple[float, str]]:
        return iter(self._ends)

    def first(self) -> tuple[float, str] | None:
        return self._ends[0] if self._ends else None

    def copy(self) -> Timeline:
        twin = Timeline()
        twin._ends = self._ends.copy()
        twin._of = self._of.copy()
        return twin
