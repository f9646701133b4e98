"""Room that is being made for a run, and for how long others may use what is free of it.

A victim may take its whole grace, and all that time the rest of the room would stand idle. A run may use it that is
gone in time for certain: its time limit and its grace end before the last victim is killed, and take no longer than the
victims have been saving so far. So who leaves sooner than it must is not waited for twice as long. It takes no longer
than a stop is worth either (`going.worth_s`): the run for which room is made then waits for it, and stops nobody else
in its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rota.core.board import Board, kib
from rota.core.going import Going
from rota.core.resources import Placement, Slice


@dataclass(slots=True)
class Kept:
    """What is free of the room that is being made for a run."""

    run_id: str
    parts: Placement
    since: float  # the last of those that it waits for was asked to end
    by: float  # all of them are gone then at the latest

    def opens_at(self, lasts_s: float) -> float:
        """Return from when on a run that lasts so long at most may use it; inf = it would not be gone in time."""
        at = self.since + lasts_s
        return at if at + lasts_s <= self.by else math.inf

    def seen(self, board: Board) -> Board:
        """Return a board on which nothing but this is free. CPUs and memory were taken off `board` with it."""
        view = board.emptied()
        for part in self.parts:
            n = board.layout.index[part.node]
            view.put(n, part.gpus, board.cpus[n] + part.cpus, board.memory_kib[n] + kib(part.memory_gb))
        return view

    def take(self, spot: Placement) -> None:
        taken = {part.node: part.gpus for part in spot}
        self.parts = tuple(replace(part, gpus=part.gpus & ~taken.get(part.node, 0)) for part in self.parts)


def meet(one: Placement, other: Placement) -> bool:
    """Return whether the two have a GPU in common."""
    there = {part.node: part.gpus for part in one}
    return any(there.get(part.node, 0) & part.gpus for part in other)


def kept_until(run_id: str, spot: Placement, free: Iterable[Slice], going: Iterable[Going]) -> Kept | None:
    """Return what is kept of a spot on which some still are that stop; None = nobody is, so nothing says how long."""
    there = [one for one in going if meet(one.placement, spot)]
    if not there:
        return None
    return Kept(run_id, tuple(free), max(one.asked_at for one in there), max(one.by for one in there))
