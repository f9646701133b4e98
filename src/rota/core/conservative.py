"""Conservative backfill: everybody who waits has a reservation, in order, and nobody may delay anybody's.

A run is booked at the first moment from which it fits for as long as it can take, beside all who run and all who were
booked before it (core/ahead.py). Fillers are not in the book: they start on whatever is free, and make way for whoever
is booked for now.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from rota.core import order
from rota.core.ahead import Ahead
from rota.core.board import Board
from rota.core.grace import planned_s
from rota.core.overdue import given_up
from rota.core.place import place
from rota.core.plan import Reserve
from rota.core.policy import Ordering, Policy
from rota.core.preempt import Holder, Making, Stopping, asked
from rota.core.progress import left_of
from rota.core.resources import Placement, Request, Slice, lowest
from rota.core.run import Run
from rota.core.snapshot import Snapshot
from rota.core.underestimate import revised_ends
from rota.core.zones import Zones

FOR_GOOD_S = 1e9  # longer than any booking
LATE_S = 1.0  # what is past its expected end is not gone: it is believed to end after this moment


class Profile:
    def __init__(
        self, snap: Snapshot, zones: Zones, started: list[tuple[float, Placement]], gone: Collection[str] = ()
    ) -> None:
        """`started`: what has been given out in this pass, until when; `gone`: who was asked to go in it."""
        self.now, self.zones, self.board = snap.now, zones, zones.main
        self.policy = snap.policy
        layout = self.board.layout
        # Where GPUs of one node are not alike, because some are reserved or of another kind, they have to be named.
        self.named = bool(zones.calendar) or any(len({gpu[1:] for gpu in kind.gpus}) > 1 for kind in layout.kinds)
        self.ahead = Ahead(snap.now, self.board, named=self.named)
        for end, placement in started:
            self._hold(end, placement)
        # Who came later and passed was let by because that moved nobody's booking. So those bookings are made without
        # looking at it, or they would move after all.
        by_arrival = snap.policy.ordering is Ordering.FCFS
        undying, _ = given_up(snap)
        revised = {**revised_ends(snap), **dict.fromkeys(undying, math.inf)}
        ends = ((revised.get(run_id, end), run_id) for end, run_id in snap.timeline)
        active = [(end, snap.runs[run_id]) for end, run_id in ends if run_id not in gone]
        held = [(run.seq if by_arrival else 0, end, run.id) for end, run in active if not run.spec.filler]
        self._later = sorted(held, reverse=True)
        self._runs = snap.runs
        self._hopes = self._shortest(snap)

    def _hold(self, end: float, placement: Placement) -> None:
        """Somebody runs there until then."""
        self.ahead.take(self.now, max(end, self.now + LATE_S), placement)

    # -- who could still begin ----------------------------------------------------------------------------------------
    def _shortest(self, snap: Snapshot) -> list[tuple[Request, float, list[int]]]:
        """The shortest run of each shape, narrow ones last, and the nodes that may have room for it now."""
        shortest: dict[Request, float] = {}
        for lane in snap.queue.lanes():
            if not order.is_filler(lane.band):
                length = min(_length_s(self.policy, snap.runs[run_id]) for _, run_id in lane.runs)
                shortest[lane.request] = min(length, shortest.get(lane.request, math.inf))
        hopes = []
        for request, length in sorted(shortest.items(), key=lambda one: -one[0].gpus):
            fits, ((share, _, _), _) = self.board.layout.fits(request), self.ahead.needs(request)[-1]
            nodes = self.board.layout.open.copy()
            if not snap.fillers:  # else there is room where they are
                nodes = [n for n in nodes if (self.board.free[n] & fits[n]).bit_count() >= share]
            hopes.append((request, length, nodes))
        return hopes

    def over(self) -> bool:
        """None of those who wait can begin now any more."""
        while self._hopes and not self.ahead.can_begin(*self._hopes[-1]):
            self._hopes.pop()
        return not self._hopes

    # -- one after the other ------------------------------------------------------------------------------------------
    def book(self, run: Run, *, only_beside: bool = False) -> Reserve | None:
        """Its place in the future; None = there is none. One for now is for the caller to start. `only_beside`: for now
        alone, and where it is in nobody's way however long it takes."""
        while self._later and self._later[-1][0] < run.seq:
            _, end, run_id = self._later.pop()
            attempt = self._runs[run_id].attempt
            assert attempt is not None
            self._hold(end, attempt.placement)
        request, length = run.spec.request, FOR_GOOD_S if only_beside else _length_s(self.policy, run)
        at, nodes = self.ahead.ripe(request, self.now, length)
        latest = math.nextafter(self.now, math.inf) if only_beside else math.inf
        while at < latest:
            zone = self.zones.of(run, at)
            if zone is not None:
                board = self.ahead.board(nodes, at, at + length)
                spot = place(self.zones.seen(board, zone) if zone else board, request)
                if spot is not None:
                    self.ahead.take(at, at + length, spot)
                    return Reserve(run.id, at, spot) if at > self.now else self._begin(run, spot)
            edge = min((edge for edge in self.zones.edges() if edge > at), default=math.inf)
            at, nodes = self.ahead.ripe(request, min(edge, self.ahead.change(at)), length)
        return None

    def _begin(self, run: Run, spot: Placement) -> Reserve:
        """On GPUs that are free this moment. Where somebody still has them, a little later."""
        there = self._settled(self.board, spot)
        return Reserve(run.id, self.now + LATE_S, spot) if there is None else Reserve(run.id, self.now, there)

    def _settled(self, board: Board, spot: Placement) -> Placement | None:
        """The GPUs of a booking as they are free on that board; None = they are not."""
        parts = []
        for part in spot:
            count, free = part.gpus.bit_count(), board.free[board.layout.index[part.node]]
            exact = part if self.named else replace(part, gpus=lowest(free, count))
            if exact.gpus.bit_count() < count or not board.holds(exact):
                return None
            parts.append(exact)
        return tuple(parts)

    # -- fillers ------------------------------------------------------------------------------------------------------
    def way(self, run: Run, booked: Reserve, stopping: Stopping) -> Making | None:
        """The fillers that have what somebody is booked for; None = its time has not come, or others are in the way."""
        if booked.at > self.now + LATE_S:
            return None
        later = stopping.later(self.board, stopping.near())
        victims: list[Holder] = []
        for part in booked.placement:
            for one in stopping.fillers:
                if self._settled(later, (part,)) is not None:
                    break
                if one not in victims and self._meet(part, one.placement):
                    later.give(one.placement)
                    victims.append(one)
        there = self._settled(later, booked.placement)
        return None if there is None else Making(tuple(asked(one.run, run) for one in victims), there)

    def _meet(self, part: Slice, placement: Placement) -> bool:
        there = [other.gpus for other in placement if other.node == part.node]
        return any(not self.named or gpus & part.gpus for gpus in there)


def _length_s(policy: Policy, run: Run) -> float:
    return max(1.0, left_of(run) if run.spec.time_limit_s is None else planned_s(policy, run))
