"""A reservation: these GPUs are kept for somebody, from then to then.

Which GPUs is chosen once, when it is made (see `reserving`), and written down with it: what a person was promised does
not move. A run uses a reservation by naming it in its spec. Once it is over or cancelled it leaves the calendar, and a
run that still names it is a run like any other. If it had begun, or was given up within a week of its start, it is
remembered for `COUNTED_S`: what a person may reserve is bounded by what that person reserved in this time and has
reserved ahead, used or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from rota.core.resources import Placement, gpu_count

COUNTED_S = 7 * 24 * 3600.0
NOTICE_S = 24 * 3600.0  # one that is given up later than so long before its start counts in full for the time since
STOOD_FOR_ONE = 12  # before that, so many seconds for which it stood count as one: two hours for each day
LEAST_S = 900.0  # that one counts for at least: it stops work of others, however short it is


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
    counted_until: float | None = None  # of one that is over: to then it counts against its owner's bound

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

    def counts_until(self) -> float:
        """Return to when it counts against its owner's bound."""
        return max(self.end, self.start + LEAST_S) if self.counted_until is None else self.counted_until

    def counted_gpu_s(self, now: float) -> float:
        """Return the GPU-seconds of it that count now: those of the last `COUNTED_S` and those to come."""
        return self.gpus * max(0.0, self.counts_until() - max(self.start, now - COUNTED_S))

    def was_cheap(self) -> bool:
        """Return whether it was given up ahead of its start and counts for less than `LEAST_S`, perhaps for nothing."""
        return self.counts_until() < self.start + LEAST_S

    def ended(self, at: float, *, again: bool = False) -> float | None:
        """Return to when it counts if it ends then; None = it does not, since it was given up long before its start.
        `again`: it is given up, and its owner had a cheap one already: a mistake is free once.

        One that is ahead keeps every run off its GPUs that would not be done before it, also when it is given up and
        made again and again. Given up late, it counts for as long as it did that within `NOTICE_S` of its start, up to
        its own length; and for a share of the time for which it stood in the last `COUNTED_S` before its start."""
        if at >= self.start:
            return self.start + max(min(at, self.end) - self.start, LEAST_S)
        if at <= self.start - COUNTED_S:
            return None
        stood_s = at - max(self.made_at, self.start - COUNTED_S)
        held_s = stood_s // (60.0 * STOOD_FOR_ONE) * 60.0  # whole minutes: who was only mistaken pays nothing
        if at > self.start - NOTICE_S:
            late_s = at - max(self.made_at, self.start - NOTICE_S)
            held_s = max(held_s, min(late_s, self.end - self.start), LEAST_S)
        elif again:
            held_s = max(held_s, LEAST_S)
        return self.start + held_s


def by_start(reservations: Iterable[Reservation]) -> tuple[Reservation, ...]:
    return tuple(sorted(reservations, key=lambda one: (one.start, one.id)))


def fewer_at(reservations: Iterable[Reservation], now: float, gpu_s: float) -> float:
    """Return when so many GPU-seconds less of them count than now, or else none at all."""
    moves: list[tuple[float, int]] = []
    for one in reservations:
        begin, end = max(one.start, now - COUNTED_S), one.counts_until()
        if begin < end:
            moves += [(begin, one.gpus), (end, -one.gpus)]
    at, rate = now - COUNTED_S, 0
    for edge, gpus in sorted(moves):
        if rate and rate * (edge - at) >= gpu_s:
            return at + gpu_s / rate + COUNTED_S
        gpu_s -= rate * (edge - at)
        at, rate = edge, rate + gpus
    return at + COUNTED_S


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
