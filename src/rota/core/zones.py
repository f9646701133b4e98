"""What is free for whom, where reservations keep GPUs: a run sees only the GPUs that it may have until it ends.

A run may use a reserved GPU if it will be gone by the start of the reservation, its grace after its time limit
included, or can be stopped then. A run that
names a reservation sees nothing but that one's GPUs, once it has begun. Runs that see the same are in one zone, and
each zone has a board of its own; without reservations there is one zone, and the board is the board.
"""

from __future__ import annotations

from rota.core.board import Board
from rota.core.grace import longest_s
from rota.core.reservation import Reservation
from rota.core.resources import Placement, Slice
from rota.core.run import Run
from rota.core.snapshot import Snapshot

Zone = tuple[str, ...]
EVERYWHERE: Zone = ()


class Zones:
    def __init__(self, snap: Snapshot) -> None:
        self.now, self.policy = snap.now, snap.policy
        self.calendar = snap.reservations
        self.main = snap.board.copy()
        self._boards: dict[Zone, Board] = {}

    def of(self, run: Run, begins: float | None = None) -> Zone | None:
        """The zone of a run that begins then, or now. None = it waits for a reservation that has not begun."""
        if not self.calendar:
            return EVERYWHERE
        now = self.now if begins is None else begins
        own = run.spec.reservation
        mine = next((one for one in self.calendar if one.id == own), None) if own else None
        if mine is not None:
            return ("only", mine.id) if mine.active(now) else None
        until = now if run.spec.stoppable else now + longest_s(self.policy, run)
        return tuple(one.id for one in self.calendar if one.start <= until and now < one.end)

    def board(self, zone: Zone) -> Board:
        if zone == EVERYWHERE:
            return self.main
        known = self._boards.get(zone)
        if known is None:
            known = self._boards[zone] = self.seen(self.main, zone)
        return known

    def seen(self, board: Board, zone: Zone) -> Board:
        """A copy of a board with only what the zone may have."""
        view = board.copy()
        for one in self.calendar:
            if zone[:1] == ("only",):
                if one.id == zone[1]:
                    view.take(_others(view, one))
            elif one.id in zone:
                view.take(tuple(Slice(part.node, part.gpus) for part in one.placement))
        return view

    def hidden(self, zone: Zone) -> dict[str, int]:
        """GPUs of each node that the zone may not have, whoever holds them."""
        if zone[:1] == ("only",):
            kept = {part.node: part.gpus for one in self.calendar if one.id == zone[1] for part in one.placement}
            return {node.id: ~kept.get(node.id, 0) for node in self.main.layout.nodes}
        hidden: dict[str, int] = {}
        for one in self.calendar:
            for part in one.placement if one.id in zone else ():
                hidden[part.node] = hidden.get(part.node, 0) | part.gpus
        return hidden

    def take(self, spot: Placement) -> None:
        self.main.take(spot)
        for board in self._boards.values():
            board.take(spot)

    def edges(self) -> list[float]:
        """When room may come that no end of a run brings."""
        return [moment for one in self.calendar for moment in (one.start, one.end) if moment > self.now]


def _others(board: Board, reservation: Reservation) -> Placement:
    """Everything but what is reserved."""
    kept = {part.node: part.gpus for part in reservation.placement}
    return tuple(
        Slice(node.id, mask & ~kept.get(node.id, 0)) for node, mask in zip(board.layout.nodes, board.free, strict=True)
    )
