"""Which GPUs a reservation gets, and when there is room for one.

No other reservation may have them at any moment of it. Among those that are left, the ones that will be free when it
begins are wanted: what is free, or expected to be by then; after that what preemptible work holds, which is stopped at
the start, or soon after it where it has only just started; and only then what is expected to come free later, the
soonest first. Within each the placer decides as it
does for a run: best fit, whole nodes, lowest numbers.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from rota.core.board import Board, Layout
from rota.core.overdue import overdue
from rota.core.place import place
from rota.core.protect import from_reservation_until
from rota.core.reservation import Reservation
from rota.core.resources import Placement, Request, Slice
from rota.core.state import State

LOOKS = 100  # moments at which room is looked for: the one writer waits for it


def choose(state: State, request: Request, start: float, end: float, now: float) -> Placement | None:
    """None = other reservations have too much of that time, or too much is out of service."""
    spare = _unreserved(state, Board(state.board.layout), start, end)
    if place(spare, request) is None:
        return None
    held = [_of(spare, placement) for placement in _held_at(state, start, now)]
    rest = spare.copy()
    for placement in held:
        rest.take(placement)
    # the more are gone, the more is free: the fewest that must be are found by halving
    gone = bisect_left(range(len(held)), True, key=lambda count: place(rest.after(held[:count]), request) is not None)
    return place(rest.after(held[:gone]), request)


def room_from(state: State, request: Request, start: float, length_s: float) -> float | None:
    """When a reservation of that length could begin, from `start` on. Room comes only where another one ends."""
    moments = [start, *sorted({one.end for one in state.calendar if one.end > start})]
    everything = Board(state.board.layout)
    for at in (*moments[:LOOKS], moments[-1]):
        if place(_unreserved(state, everything, at, at + length_s), request) is not None:
            return at
    return None


def could_hold(layout: Layout, reservation: Reservation, request: Request) -> bool:
    """Does a run of this shape fit onto what is reserved? Where some of it is out of service nobody can tell."""
    kept = {part.node: part.gpus for part in reservation.placement}
    usable = {node.id: mask for node, mask in zip(layout.nodes, layout.usable, strict=True)}
    if any(gpus & ~usable.get(node, 0) for node, gpus in kept.items()):
        return True
    board = Board(Layout(node for node in layout.nodes if node.id in kept))
    board.take(tuple(Slice(node, usable[node] & ~gpus) for node, gpus in kept.items()))
    return place(board, request) is not None


def _unreserved(state: State, everything: Board, start: float, end: float) -> Board:
    """What no reservation has in that time, whoever holds it now."""
    board = everything.copy()
    for one in state.calendar:
        if one.meets(start, end):
            board.take(one.placement)
    return board


def _of(board: Board, placement: Placement) -> Placement:
    """The part of it that the board has: what is given back must not be more."""
    index, free = board.layout.index, board.free
    parts = ((part.node, index.get(part.node), part.gpus) for part in placement)
    return tuple(Slice(node, gpus & free[n]) for node, n, gpus in parts if n is not None)


def _held_at(state: State, start: float, now: float) -> list[Placement]:
    """What is expected to be held still when it begins; first in the list is first to go."""
    yielding: list[tuple[float, Placement]] = []
    others: list[Placement] = []
    for (expected_end, run_id), (_, placement) in zip(state.timeline, state.timeline.given_back(), strict=True):
        run = state.runs[run_id]
        late, end = overdue(state.policy, run, now), expected_end
        if late is not None:
            end = math.inf if late.until is None else late.until
        if end <= start and start > now:  # what is late now will have ended by some later time
            continue
        if run.spec.stoppable:
            yielding.append((max(start, from_reservation_until(state.policy, run, now)), placement))
        else:
            others.append(placement)
    yielding.sort(key=lambda one: one[0])  # stable: else the soonest to end first, as the timeline has them
    return [*(placement for _, placement in yielding), *others]
