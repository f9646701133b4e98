"""Why there is no room for a run: who holds it, for whom it is kept, and who could make way.

The answers come from the functions the pass itself uses (place, reserve, zones, stopping), asked about one run.
"""

from __future__ import annotations

from rota.core.backfill import outside, reserve
from rota.core.board import Board
from rota.core.express import SHORT_S
from rota.core.grace import planned_s
from rota.core.headroom import Headroom
from rota.core.ids import run_of
from rota.core.overdue import given_up, has_outlived_kill, holds, overdue
from rota.core.place import could_ever_fit, place
from rota.core.plan import Plan, Reserve
from rota.core.preempt import Stopping
from rota.core.protect import MOST_S
from rota.core.reason import SHOWN, Reason, describe
from rota.core.resources import Placement, Request, Slice
from rota.core.run import Run
from rota.core.snapshot import Snapshot
from rota.core.state import State
from rota.core.times import about, told
from rota.core.underestimate import late_passers, may_be_late
from rota.core.usage import Shares
from rota.core.zones import EVERYWHERE, Zone, Zones

MOST_OVERDUE = 5  # named in one answer
LATE_S = 1.0  # what is expected to end at this very moment was expected to end before


def resources(state: State, snap: Snapshot, run: Run, plan: Plan) -> list[Reason]:
    request = run.spec.request
    if not could_ever_fit(snap.board.layout, request):
        return [Reason("impossible", f"no node, nor all together, could ever give {describe(request)}")]
    zones = Zones(snap)
    zone = zones.of(run)
    if zone is None:  # its window has not begun
        return []
    board = zones.board(zone)
    if place(board, request) is None:
        if place(snap.board, request) is not None:
            return [_kept(zones, snap, request, zone), *_overdue(zones, snap, run, zone), *_stopping(snap, run, board)]
        standing_back, spare = _short_first(snap, run)
        spot = reserve(snap, snap.board, run, [], zones, spare=spare) or reserve(snap, snap.board, run, [], zones)
        if spot is None and zone[:1] == ("only",) and place(zones.seen(Board(snap.board.layout), zone), request):
            return [_kept(zones, snap, request, zone), *_overdue(zones, snap, run, zone), *_stopping(snap, run, board)]
        if spot is None and (stuck := _undying(snap, request)):
            text = f"needs {describe(request)}; part of that is held by one that was due to be killed and has not died"
            return [Reason("resources", text, stuck), *_overdue(zones, snap, run, zone), *_stopping(snap, run, board)]
        if spot is None:
            out = ", ".join(node.id for node in state.nodes.values() if node.drained or not node.alive) or "unfit GPUs"
            return [Reason("nodes", f"{describe(request)} would need nodes that are out of service: {out}")]
        free = board.free_gpus
        there = f"{free} are free, but not so that it fits" if free >= request.gpus else f"{free or 'none'} free now"
        late = spot.at <= snap.now + LATE_S
        text = f"needs {describe(request)}; {there}{'; who has them should have ended by now' if late else ''}"
        found = Reason("resources", text, _holders(snap, spot.placement), None if late else spot.at)
        kept = _too_much_kept(zones, request, zone)
        return [found, *_overdue(zones, snap, run, zone), *kept, *standing_back, *_stopping(snap, run, board)]
    hole = plan.reserve
    if hole is not None and hole.run_id != run.id:
        head = snap.runs[hole.run_id]
        doubted = may_be_late(run, head, late_passers(snap, head))
        is_over = snap.now + planned_s(snap.policy, run) <= hole.at
        if (doubted or not is_over) and place(outside(snap.board, hole), request) is None:
            return [_behind(snap, run, hole, doubted=doubted and is_over)]
    return _short_first(snap, run)[0]


def _kept(zones: Zones, snap: Snapshot, request: Request, zone: Zone) -> Reason:
    """There would be room, were it not for what people have reserved."""
    if zone[:1] == ("only",):
        own = next(one for one in zones.calendar if one.id == zone[1])
        text = f"the GPUs of its reservation {own.id} have no room for {describe(request)} now"
        return Reason("reserved", text, _holders(snap, own.placement))
    are = "is" if request.gpus == 1 else "are"
    text = f"{describe(request)} {are} free, but kept for {_named(zone)} before this one could be done"
    return Reason("reserved", text, until=_until(zones, zones.main, request, zone))


def _too_much_kept(zones: Zones, request: Request, zone: Zone) -> list[Reason]:
    """Whoever ends: on what is not reserved it does not fit."""
    layout = zones.main.layout
    if zone == EVERYWHERE or zone[:1] == ("only",) or place(zones.seen(Board(layout), zone), request) is not None:
        return []
    hidden = zones.hidden(zone)
    there = zip(layout.nodes, layout.usable, strict=True)
    kept = sum((hidden.get(node.id, 0) & usable).bit_count() for node, usable in there)
    text = (
        f"with {kept} of {layout.in_service} GPUs kept for {_named(zone)} the rest has no room for {describe(request)}"
    )
    return [Reason("reserved", text, until=_until(zones, Board(layout), request, zone))]


def _overdue(zones: Zones, snap: Snapshot, run: Run, zone: Zone) -> list[Reason]:
    """Name every run that should be gone and holds GPUs that this one could have, longest overdue first."""
    own = next((one for one in zones.calendar if one.id == zone[1]), None) if zone[:1] == ("only",) else None
    usable = own.placement if own is not None else _eligible(snap, run.spec.request)
    found = []
    for _, run_id in snap.timeline:
        other = snap.runs[run_id]
        late = overdue(snap.policy, other, snap.now, own)
        stop = other.attempt.stop if other.attempt is not None else None
        # preempted for this very run: the reason "stopping" says so, unless the run does not die
        expected = stop is not None and stop.for_run == run.id and late is not None and late.until is not None
        if late is not None and not expected and holds(other, usable):
            found.append(late)
    found.sort(key=lambda one: (one.since, one.run_id))
    return [Reason("overdue", one.text, (one.run_id,), one.until) for one in found[:MOST_OVERDUE]]


def _undying(snap: Snapshot, request: Request) -> tuple[str, ...]:
    """Return who holds GPUs that it could have and is not reckoned to end."""
    usable, (stuck, _) = _eligible(snap, request), given_up(snap)
    return tuple(run_id for run_id in sorted(stuck) if holds(snap.runs[run_id], usable))[:SHOWN]


def _eligible(snap: Snapshot, request: Request) -> Placement:
    layout = snap.board.layout
    return tuple(Slice(node.id, mask) for node, mask in zip(layout.nodes, layout.fits(request), strict=True) if mask)


def _named(zone: Zone) -> str:
    return f"a reservation ({zone[0]})" if len(zone) == 1 else f"reservations ({', '.join(zone[:SHOWN])})"


def _until(zones: Zones, board: Board, request: Request, zone: Zone) -> float | None:
    """When so many of these reservations are over that it fits on what the board has besides."""
    kept = sorted((one for one in zones.calendar if one.id in zone), key=lambda one: one.end)
    for over, one in enumerate(kept, 1):
        if place(zones.seen(board, tuple(later.id for later in kept[over:])), request) is not None:
            return one.end
    return None


def _stopping(snap: Snapshot, run: Run, board: Board) -> list[Reason]:
    """Who makes way for it, or would if they had not only just started."""
    attempts = [attempt for _, other in snap.timeline if (attempt := snap.runs[other].attempt) is not None]
    attempts = [one for one in attempts if not has_outlived_kill(snap.policy, snap.runs[run_of(one.id)], snap.now)]
    going = [(attempt, stop) for attempt in attempts if (stop := attempt.stop) is not None and stop.for_run == run.id]
    if going:
        until = max(stop.at + stop.grace_s for _, stop in going)
        return [Reason("stopping", "others make way for it", tuple(run_of(one.id) for one, _ in going)[:SHOWN], until)]
    if not snap.policy.preemption or not snap.stoppable:
        return []
    policy = snap.policy
    shares = Shares(snap.usage, snap.load, snap.now, policy.half_life_s, snap.board.layout.gpus)
    stopping = Stopping(snap, shares)
    making = stopping.choose(board, run, stopping.standing(run), {})
    if making is not None and making.awaited:
        again = tuple(run_id for run_id in making.awaited if run_id in stopping.alone)
        if not again:
            text = "fillers on its GPUs go as soon as the others that it waits for have ended"
            by = max((one.by for one in stopping.near()), default=None)
            return [Reason("stopping", text, making.awaited[:SHOWN], by)]
        text = (
            "who makes way for it was stopped before and has only just started again: it is left alone for at most "
            f"{told(MOST_S)} after that, and what is free is kept for this one"
        )
        return [Reason("protected", text, again[:SHOWN], max(stopping.alone[run_id] for run_id in again))]
    awaited = stopping.awaited(board, run, stopping.standing(run)) if making is None and stopping.protected else {}
    if not awaited:
        return []
    text = "who could make way for it has only just started, and is left alone for a while"
    return [Reason("protected", text, tuple(awaited)[:SHOWN], min(awaited.values()))]


def _behind(snap: Snapshot, run: Run, hole: Reserve, *, doubted: bool) -> Reason:
    left = max(0.0, hole.at - snap.now)
    takes = f"this one may take {about(planned_s(snap.policy, run))}"
    if doubted:
        takes = "this one has no time limit, and another run of its owner that passed that one without a limit is late"
    text = f"would delay {hole.run_id}, which has a reservation in {about(left)}; {takes}"
    return Reason("reservation", text, (hole.run_id,), hole.at)


def _short_first(snap: Snapshot, run: Run) -> tuple[list[Reason], int]:
    """It leaves the last GPUs to short runs; and how many must be free beside it for that."""
    headroom = Headroom(snap)
    if not headroom.stands_back(run, snap.queue.lane_of(run.id), snap.board.free_gpus):
        return [], 0
    few = f"{headroom.kept} GPUs" if headroom.kept > 1 else "GPU"
    text = f"takes more than {told(SHORT_S)} and cannot be stopped: it leaves the last {few} to short runs, at most"
    return [Reason("express", text, until=headroom.until)], headroom.missing()


def _holders(snap: Snapshot, placement: Placement) -> tuple[str, ...]:
    """Active runs that hold any of these GPUs."""
    wanted = {part.node: part.gpus for part in placement}
    found = []
    for _, run_id in snap.timeline:
        attempt = snap.runs[run_id].attempt
        assert attempt is not None
        if any(wanted.get(part.node, 0) & part.gpus for part in attempt.placement):
            found.append(run_id)
    return tuple(found[:SHOWN])
