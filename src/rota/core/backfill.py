"""The reservation of the run that cannot start, and the hole others may fill until then (EASY backfill).

Running attempts are taken to end when expected, and those that are late already after as long again
(core/underestimate.py). Walking their ends in order gives the earliest moment at which the request fits; the GPUs it
will take then are chosen among those that are busy now as far as possible, so that free ones stay usable. Whoever
passes must either be done by that moment or keep off the reserved GPUs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from itertools import chain

from rota.core.board import Board
from rota.core.overdue import given_up
from rota.core.place import place
from rota.core.plan import Reserve
from rota.core.resources import Placement, Request, Slice, lowest
from rota.core.run import Run
from rota.core.snapshot import Snapshot
from rota.core.underestimate import revised_ends
from rota.core.zones import Zones


def reserve(
    snap: Snapshot,
    board: Board,
    run: Run,
    started: list[tuple[float, Placement]],
    zones: Zones | None = None,
    *,
    yielding: Mapping[str, Placement] | None = None,
    spare: int = 0,
) -> Reserve | None:
    """`started` are the starts of this very pass with their expected ends, `yielding` what those runs hold that it can
    stop: they are as good as gone; `spare` GPUs must be free beside it. None = not even when all has ended but what
    outlived its kill.

    Most ends change nothing for a wide request, so they are only counted; the board is brought up to date and asked
    when enough nodes have enough GPUs for the first time, and then at each further node.
    """
    request = run.spec.request
    calendar = zones if zones is not None and zones.calendar else None
    yielding = yielding or {}
    share, nodes = _least(request, board)
    now, board = board, board.after(yielding.values()) if yielding else board
    index, fit = board.layout.index, board.layout.fits(request)
    free = [mask & good for mask, good in zip(board.free, fit, strict=True)]
    ready = sum(mask.bit_count() >= share for mask in free)
    later: Board | None = None
    pending: list[Placement] = []
    ends = _ends(snap, started, calendar, yielding)
    for end, placement in chain([(snap.now, ())], ends) if yielding else ends:
        pending.append(placement)
        news = not placement  # a reservation begins or ends
        for part in placement:
            n = index.get(part.node, -1)
            if n < 0:
                continue
            before = free[n]
            free[n] = after = before | (part.gpus & fit[n])
            if after.bit_count() >= share:
                news = True
                ready += before.bit_count() < share
        if not news or ready < nodes:
            continue
        if later is None:
            later = board.after(pending)
        else:
            for given in pending:
                later.give(given)
        pending.clear()
        at = max(end, snap.now)
        seen = later if calendar is None else _seen(calendar, run, at, later)
        spot = None if seen is None else place(seen, request)
        if spot is not None and seen is not None and later.free_gpus - request.gpus >= spare:
            return Reserve(run.id, at, _prefer_busy(spot, now, seen, request))
    return None


def _seen(zones: Zones, run: Run, at: float, later: Board) -> Board | None:
    """What the run may have of a board, if it begins then."""
    zone = zones.of(run, at)
    return None if zone is None else zones.seen(later, zone)


def _ends(
    snap: Snapshot, started: list[tuple[float, Placement]], zones: Zones | None, yielding: Container[str]
) -> Iterable[tuple[float, Placement]]:
    running = snap.timeline.given_back()
    (undying, _), revised = given_up(snap), revised_ends(snap)
    if yielding or undying or revised:
        both = zip(snap.timeline, running, strict=True)
        running = (
            (revised.get(run_id, end), placement)
            for (_, run_id), (end, placement) in both
            if run_id not in yielding and run_id not in undying
        )
    if not started and zones is None and not revised:
        return running
    edges: list[tuple[float, Placement]] = [] if zones is None else [(at, ()) for at in zones.edges()]
    return sorted([*running, *started, *edges], key=lambda entry: entry[0])


def _least(request: Request, board: Board) -> tuple[int, int]:
    """(GPUs below which a node is of no use to the request, how many such nodes it needs at least)."""
    if request.nodes > 1:
        return request.gpus // request.nodes, request.nodes
    if request.span:
        return 1, 1
    largest = max((mask.bit_count() for _, mask in board.layout.eligible(request)), default=0)
    if largest and request.gpus > largest:
        return request.gpus % largest or largest, -(-request.gpus // largest)
    return request.gpus, 1


def _prefer_busy(spot: Placement, now: Board, later: Board, request: Request) -> Placement:
    chosen = []
    for part in spot:
        n = now.layout.index[part.node]
        fit = _fit(now, n, request)
        busy = later.free[n] & fit & ~now.free[n]
        need = part.gpus.bit_count()
        gpus = lowest(busy, min(need, busy.bit_count()))
        spare = later.free[n] & fit & now.free[n]
        while gpus.bit_count() < need:  # the highest free ones: placement takes from the low end
            top = 1 << (spare.bit_length() - 1)
            gpus |= top
            spare ^= top
        chosen.append(Slice(part.node, gpus, part.cpus, part.memory_gb))
    return tuple(chosen)


def _fit(board: Board, n: int, request: Request) -> int:
    """The GPUs of a node that the request could use, as bits."""
    kind = board.layout.kind_of[n]
    return next((mask for number, mask in board.layout.eligible(request) if number == kind), 0)


def exchange(hole: Reserve, request: Request, spot: Placement, board: Board, rest: Board) -> Reserve:
    """A run that will be done in time took GPUs beside the hole: those come back, so free ones of the hole are let go.

    `request` is the reserved run's, `board` and `rest` are what is free in all and outside the hole, after that start.
    """
    taken = {part.node: part.gpus for part in spot}
    parts = []
    for part in hole.placement:
        n = board.layout.index[part.node]
        coming = taken.get(part.node, 0) & ~part.gpus & _fit(board, n, request)
        spare = part.gpus & board.free[n]
        count = min(coming.bit_count(), spare.bit_count())
        let_go = lowest(spare, count)
        rest.give((Slice(part.node, let_go),))
        parts.append(replace(part, gpus=part.gpus & ~let_go | lowest(coming, count)))
    return replace(hole, placement=tuple(parts))


def outside(board: Board, later: Reserve) -> Board:
    """What a run that outlasts the reservation may use: everything free but the reserved part."""
    rest = board.copy()
    rest.take(later.placement)
    return rest
