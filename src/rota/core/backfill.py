"""The reservation of the run that cannot start, and the hole others may fill until then (EASY backfill).

Running attempts are taken to end when expected. Walking their ends in order gives the earliest moment at which the
request fits; the GPUs it will take then are chosen among those that are busy now as far as possible, so that free ones
stay usable. Whoever passes must either be done by that moment or keep off the reserved GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rota.core.board import Board
from rota.core.place import place
from rota.core.plan import Reserve
from rota.core.resources import Placement, Request, Slice, lowest
from rota.core.snapshot import Snapshot


def reserve(
    snap: Snapshot, board: Board, run_id: str, request: Request, started: list[tuple[float, Placement]]
) -> Reserve | None:
    """`started` are the starts of this very pass with their expected ends. None = not even when all of it has ended."""
    later = board.copy()
    share = _smallest_share(request, board)
    for end, placement in _ends(snap, started):
        later.give(placement)
        if share and all(_free(later, part) < share for part in placement):
            continue  # still too little on every node that just got something back: nothing can have changed
        spot = place(later, request)
        if spot is not None:
            return Reserve(run_id, max(end, snap.now), _prefer_busy(spot, board, later, request))
    return None


def _ends(snap: Snapshot, started: list[tuple[float, Placement]]) -> Iterable[tuple[float, Placement]]:
    if not started:
        return _walk(snap)
    return sorted([*_walk(snap), *started], key=lambda entry: entry[0])


def _walk(snap: Snapshot) -> Iterator[tuple[float, Placement]]:
    """Ends of the running attempts in order, without copying the timeline."""
    runs = snap.runs
    for end, run_id in snap.timeline:
        attempt = runs[run_id].attempt
        assert attempt is not None
        yield end, attempt.placement


def _smallest_share(request: Request, board: Board) -> int:
    """With fewer GPUs than this a node is of no use to the request."""
    if request.span:
        return 1
    if request.nodes > 1:
        return request.gpus // request.nodes
    largest = max((mask.bit_count() for _, mask in board.layout.eligible(request)), default=0)
    if largest and request.gpus > largest:
        return request.gpus % largest or largest
    return request.gpus


def _free(board: Board, part: Slice) -> int:
    n = board.layout.index.get(part.node)
    return 0 if n is None else board.free[n].bit_count()


def _prefer_busy(spot: Placement, now: Board, later: Board, request: Request) -> Placement:
    chosen = []
    for part in spot:
        n = now.layout.index[part.node]
        kind = now.layout.kind_of[n]
        fit = next((mask for number, mask in now.layout.eligible(request) if number == kind), 0)
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


def outside(board: Board, later: Reserve) -> Board:
    """What a run that outlasts the reservation may use: everything free but the reserved part."""
    rest = board.copy()
    rest.take(later.placement)
    return rest
