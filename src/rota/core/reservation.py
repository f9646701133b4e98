"""A reservation: these GPUs are kept for somebody, from then to then.

Which GPUs is chosen once, when it is made (see `reserving`), and written down with it: what a person was promised does
not move. A run uses a reservation by naming it in its spec. Once it is over or cancelled it leaves the state, and a
run that still names it is a run like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from rota.core.resources import Placement, gpu_count


@dataclass(frozen=True, slots=True)
class Reservation:
    id: str
    user: str
    name: str
    start: float  # epoch seconds of the house, as every `at`
    end: float
    placement: Placement
    made_at: float
    why: str = ""
    users: tuple[str, ...] = ()  # who may use it besides `user`

    @property
    def gpus(self) -> int:
        return gpu_count(self.placement)

    def serves(self, user: str) -> bool:
        return user == self.user or user in self.users

    def active(self, now: float) -> bool:
        return self.start <= now < self.end

    def meets(self, start: float, end: float) -> bool:
        """Is any moment of [start, end) its own?"""
        return self.start < end and start < self.end

    def gpu_s(self, now: float) -> float:
        """GPU-seconds that are still to come of it."""
        return self.gpus * max(0.0, self.end - max(self.start, now))


def by_start(reservations: Iterable[Reservation]) -> tuple[Reservation, ...]:
    return tuple(sorted(reservations, key=lambda one: (one.start, one.id)))


def next_edge(calendar: Iterable[Reservation], now: float) -> float | None:
    """The next moment at which one begins or ends. One that is over and still here is due at once."""
    return min((one.start if one.start > now else one.end for one in calendar), default=None)


def collisions(calendar: Iterable[Reservation]) -> Iterator[tuple[Reservation, Reservation]]:
    """Pairs that have a GPU in common at the same time: there must be none."""
    for one, other in combinations(calendar, 2):
        if one.meets(other.start, other.end) and _share(one.placement, other.placement):
            yield one, other


def _share(one: Placement, other: Placement) -> bool:
    mine = {part.node: part.gpus for part in one}
    return any(mine.get(part.node, 0) & part.gpus for part in other)
