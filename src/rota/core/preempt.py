"""Whom to stop so that a more urgent run can start: only work that said it may be stopped, and as little as possible.

Who is more urgent depends on the ordering. Where it has a standing (srtf, las, auto), one may be stopped whose standing
is worse by `margin`, if it keeps its work in checkpoints; under every ordering, whatever is preemptible may be stopped
for a higher priority; and a filler is stopped for anybody. How long a run is left alone after a start is in `protect`.
Where only that keeps a run of a higher priority waiting, what is free of its room is kept for it. An attempt that is
already stopping is never stopped twice: its GPUs count as coming back while it is due soon enough (`going`).

Of those who may be stopped, the fewest GPU-seconds lost are wanted: node by node the least urgent are taken until the
run would fit, and the node is chosen where that costs least.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rota.core import events as e
from rota.core import going as leaving
from rota.core import order
from rota.core.board import Board
from rota.core.going import Going, Returning, near, worth_s
from rota.core.grace import for_others_s, kill_at, longest_s
from rota.core.overdue import DEAD_WITHIN_S
from rota.core.place import place, shares
from rota.core.plan import Preempt
from rota.core.policies import auto
from rota.core.policy import Ordering, Policy
from rota.core.protect import from_equals_until, from_higher_until
from rota.core.resources import Placement, Request, Slice, gpu_count
from rota.core.run import Attempt, Cause, Run
from rota.core.snapshot import Snapshot
from rota.core.usage import Shares

INFINITE = math.inf
LOOK_S = 60.0  # the least time between two looks that nothing but waiting is the reason for


@dataclass(frozen=True, slots=True)
class Making:
    """Room that is being made: who is asked to go, and where the run will start then."""

    victims: tuple[Preempt, ...]
    spot: Placement
    awaited: tuple[str, ...] = ()  # runs that are left alone for now, and asked to go after that


@dataclass(slots=True)
class Holder:
    """Somebody who may be asked to go."""

    run: Run
    placement: Placement
    standing: float  # by the ordering; inf = a filler
    cost: float  # GPU-seconds that stopping it would lose


class Stopping:
    """Who could be stopped in this pass. Made once a run is found blocked."""

    def __init__(self, snap: Snapshot, shares: Shares, gone: Collection[str] = ()) -> None:
        """`gone`: who was asked to go in this pass already."""
        self.snap, self.policy, self._shares = snap, snap.policy, shares
        self.moving = self.policy.ordering in order.MOVING
        self.protected: dict[str, float] = {}  # who could be stopped but for having only just started, until when
        self.alone: dict[str, float] = {}  # whom even a higher priority leaves alone, until when
        self.look_again_at = INFINITE  # when somebody could be stopped whom only waiting will make the less urgent
        self.going: list[Going] = []  # what those hold who are stopping, and until when
        self.promised: list[Placement] = []  # and what of that is for somebody already
        self.returning: list[Returning] = []  # those who go and will want to come back
        self.ending: list[Going] = []  # short runs, until when their time limits end them
        self.asked_for: dict[str, list[Going]] = {}  # run -> who was preempted for it before this pass and has not gone
        self.fillers: list[Holder] = []
        self.ranked: list[Holder] = []  # those that a standing tells apart, least urgent first
        self.plain: list[Holder] = []  # those that only a priority does, lowest first, newest first within one
        for run_id in snap.stoppable:
            run = snap.runs[run_id]
            attempt = run.attempt
            assert attempt is not None
            if attempt.stop is not None:
                continue
            if run_id in gone:
                self._goes(run, attempt.placement)
            elif run.spec.filler:
                self.fillers.append(Holder(run, attempt.placement, INFINITE, 0.0))
            elif self.policy.preemption:
                self._add(run, attempt)
        self.ranked.sort(key=lambda one: (-one.standing, one.run.seq))
        self.plain.sort(key=lambda one: (one.run.priority, -_since(one.run), one.run.seq))
        for _, run_id in snap.timeline:
            run = snap.runs[run_id]
            attempt = run.attempt
            if attempt is None:
                continue
            if attempt.stop is None:
                self._ends(run, attempt)
                continue
            stop, going = attempt.stop, leaving.stopping(attempt)
            if going.preempted:
                self.asked_for.setdefault(stop.for_run, []).append(going)
            if snap.now < going.until:
                self.going.append(going)
                if going.preempted and not run.spec.filler:
                    self._returns(run, stop.at)

    def _goes(self, run: Run, placement: Placement) -> None:
        """Count with one that is preempted in this pass."""
        self.going.append(leaving.asked(self.policy, run, placement, self.snap.now))
        if not run.spec.filler:
            self._returns(run, self.snap.now)

    def _ends(self, run: Run, attempt: Attempt) -> None:
        by = kill_at(self.policy, run)
        if (
            by is not None
            and self.snap.now < by + DEAD_WITHIN_S
            and longest_s(self.policy, run) <= worth_s(self.policy)
        ):
            ending = Going(attempt.placement, attempt.planned_at, by, preempted=False, until=by + DEAD_WITHIN_S)
            self.ending.append(ending)

    def _returns(self, run: Run, asked_at: float) -> None:
        until = asked_at + worth_s(self.policy)
        if self.moving and self.snap.now < until:
            self.returning.append(Returning(self.standing(run), run.priority, run.spec.request, until))

    def _add(self, run: Run, attempt: Attempt) -> None:
        until = from_higher_until(self.policy, run)
        if until > self.snap.now:
            self.alone[run.id] = until
        lost_s = self.policy.restart_cost_s
        if not run.saves:
            lost_s += max(0.0, self.snap.now - attempt.planned_at)
        one = Holder(run, attempt.placement, self.standing(run), gpu_count(attempt.placement) * lost_s)
        (self.ranked if self.moving and run.saves else self.plain).append(one)

    def standing(self, run: Run) -> float:
        if not self.moving:
            return 0.0
        return order.standing(self.policy, run, self.snap.now, self._shares.factor(run.user))

    def drop(self, making: Making) -> None:
        """Its victims go, and what they give back is spoken for."""
        # only the GPUs: CPUs and memory were all taken off the board when they were kept for it
        self.promised.append(tuple(Slice(part.node, part.gpus) for part in making.spot))
        gone = {*(victim.run_id for victim in making.victims), *making.awaited}
        for holders in (self.fillers, self.ranked, self.plain) if gone else ():
            for one in holders if not making.awaited else ():  # else they stay for now
                if one.run.id in gone:
                    self._goes(one.run, one.placement)
            holders[:] = [one for one in holders if one.run.id not in gone]

    def near(self) -> list[Going]:
        """Who is waited for, whoever could be stopped instead."""
        return near(self.policy, self.going, self.snap.now)

    def later(self, board: Board, going: Iterable[Going]) -> Board:
        """With what these give back, less what of it is for somebody already."""
        later = board.after([one.placement for one in going])
        for promised in self.promised:
            later.take(promised)
        return later

    def choose(self, board: Board, run: Run, standing: float, hidden: Mapping[str, int]) -> Making | None:
        """None = not even stopping all who may be stopped would do. No victims = what is stopping already suffices and
        is gone about as soon, or they have not had their time.
        `hidden`: GPUs that it may not have, so nobody is stopped for them."""
        able = [one for one in self._able(run, standing) if _seen(one.placement, hidden)]
        alone = [one for one in self._alone(run, standing) if _seen(one.placement, hidden)]
        # short runs may use its room while somebody saves (core/kept.py): they count as gone, and so it stays its room
        passed = [one for one in self.ending if one.asked_at >= run.submitted_at]
        counted_on = [*self.going, *passed, *leaving.still_awaited(self.asked_for.get(run.id, ()), self.snap.now)]
        going = [one for one in counted_on if _seen(one.placement, hidden)]
        if not able and not going and not alone:
            self._look_again(run, standing)
            return None
        soon = near(self.policy, going, self.snap.now)
        later = self.later(board, soon)
        making = self._leave_be(board, run, soon)
        if making is not None:
            return making
        making = self._stop(later, run, standing, able, alone)
        if making is not None and len(soon) < len(going):
            more = near(self.policy, going, self.snap.now, self._takes_s(making))
            if len(more) > len(soon):  # they are gone before, or hardly after, those who would be stopped
                soon, later = more, self.later(board, more)
                making = self._leave_be(board, run, soon) or self._stop(later, run, standing, able, alone)
        if making is not None and soon:
            making = self._put_off(board, run, making)
        if making is None:
            self._look_again(run, standing)
            if able:  # with those who go later it might do, but nobody is stopped that long before
                far = (one.by - worth_s(self.policy) for one in going if one not in soon)
                self.look_again_at = min(self.look_again_at, *far, INFINITE)
        elif soon:
            self._count_on(soon)
        return making

    def _put_off(self, board: Board, run: Run, making: Making) -> Making:
        """Leave the fillers of this room to run until the others have gone. A filler is gone at once when it is asked,
        and while the run waits for the others, a filler that was stopped too early would start again and again."""
        fillers = {one.run.id: one.placement for one in self.fillers}
        ids = [victim.run_id for victim in making.victims]
        if not ids or not all(run_id in fillers for run_id in ids):
            return making
        if place(self.later(board, ()).after([fillers[run_id] for run_id in ids]), run.spec.request) is not None:
            return making
        return Making((), making.spot, tuple(ids))

    def _leave_be(self, board: Board, run: Run, soon: list[Going]) -> Making | None:
        """Nobody has to be stopped: those who go suffice. Of the room that they leave it has what is there first."""
        first, request = sorted(soon, key=lambda one: one.by), run.spec.request
        if not first or place(self.later(board, first), request) is None:
            return None
        count = bisect_left(
            range(len(first)), True, key=lambda count: place(self.later(board, first[:count]), request) is not None
        )
        spot = place(self.later(board, first[:count]), request)
        assert spot is not None
        self._count_on(first[:count] or soon)
        return Making((), spot)

    def _count_on(self, soon: list[Going]) -> None:
        """Look again when one of them should be gone and is not."""
        self.look_again_at = min(self.look_again_at, *(one.until for one in soon))

    def _stop(self, later: Board, run: Run, standing: float, able: list[Holder], alone: list[Holder]) -> Making | None:
        left = self._beside_returning(later, run, standing)
        if left is None:
            return None
        victims = _fewest(left, run.spec.request, able)
        if victims is None:
            return self._wait(left, run, able, alone) if alone else None
        return Making(tuple(asked(one.run, run) for one in victims), _spot(left, run.spec.request, victims))

    def _beside_returning(self, later: Board, run: Run, standing: float) -> Board | None:
        """Return what is left when those are back who go, are of no lower priority and stand before it. None = one of
        them has no room there and may want that of the victims: whom to stop is seen when it is back."""
        for one in self.returning:
            if one.standing < standing and one.priority >= run.priority:
                spot = place(later, one.request)
                if spot is None:
                    self.look_again_at = min(self.look_again_at, one.until)
                    return None
                later = later.copy()
                later.take(spot)
        return later

    def _takes_s(self, making: Making) -> float:
        """Until all of them are gone at the latest, with the time for which they are left alone."""
        now, runs = self.snap.now, self.snap.runs
        ids = [*making.awaited, *(victim.run_id for victim in making.victims)]
        waits = (max(0.0, self.alone.get(run_id, now) - now) for run_id in ids)
        graces = (for_others_s(self.policy, runs[run_id].spec) for run_id in ids)
        return max((wait_s + grace_s for wait_s, grace_s in zip(waits, graces, strict=True)), default=0.0)

    def _wait(self, later: Board, run: Run, able: list[Holder], alone: list[Holder]) -> Making | None:
        """Keep the room that it will have first, once those who are left alone have had their time. The sooner that is
        the better: a choice by cost could move to one that started later, and so on without end."""
        alone.sort(key=lambda one: self.alone[one.run.id])
        request = run.spec.request
        count = bisect_left(
            range(len(alone) + 1),
            True,
            key=lambda count: place(later.after([one.placement for one in able + alone[:count]]), request) is not None,
        )
        victims = _fewest(later, request, able + alone[:count]) if count <= len(alone) else None
        if victims is None:
            return None
        for one in victims:
            if one.run.id in self.alone:
                self._protect(one.run, self.alone[one.run.id])
        return Making((), _spot(later, request, victims), tuple(one.run.id for one in victims))

    def _look_again(self, run: Run, standing: float) -> None:
        """Under auto it grows more urgent by waiting: when could it stop the next one?"""
        if self.policy.ordering is not Ordering.AUTO:
            return
        for one in self.ranked:
            times = self.policy.margin * standing / one.standing
            if times >= 1.0 and one.run.priority <= run.priority:
                at = max(auto.patience_at(self.policy, run, self.snap.now, times), self.snap.now + LOOK_S)
                self.look_again_at = min(at, self.look_again_at)
                return

    def yielding(self, run: Run, standing: float) -> dict[str, Placement]:
        """What those hold who can be stopped for it, at once or when they have had their time."""
        return {one.run.id: one.placement for one in self._able(run, standing, protected=True)}

    def awaited(self, board: Board, run: Run, standing: float) -> dict[str, float]:
        """Return who is to be stopped for it but has only just started, and until when each is left alone. Nobody where
        that would give it no room, as when their node is drained. To be asked after `choose`."""
        able = self._able(run, standing, protected=True)
        victims = _fewest(self.later(board, self.near()), run.spec.request, able) or ()
        return {one.run.id: self.protected[one.run.id] for one in victims if one.run.id in self.protected}

    def _able(self, run: Run, standing: float, *, protected: bool = False) -> list[Holder]:
        """Who may be stopped for it, least urgent first; `protected`: those too who have not had their time."""
        if run.spec.filler:
            return []
        able = self.fillers.copy()
        for one in self.plain:
            if one.run.priority >= run.priority:
                break
            less_urgent = self.policy.ordering is not Ordering.AUTO or one.standing > standing  # priority is part of it
            if less_urgent and (protected or one.run.id not in self.alone):
                able.append(one)
        enough = self.policy.margin * standing
        for one in self.ranked:
            if one.standing <= enough:
                break
            if one.run.priority > run.priority:
                continue  # it would be stopped in turn for that one
            if protected or self._may_stop(run, one.run):
                able.append(one)
        return able

    def _alone(self, run: Run, standing: float) -> list[Holder]:
        """Who could be stopped for it by its priority, and is left alone for now."""
        if not self.alone:
            return []
        there = self._able(run, standing, protected=True)
        return [one for one in there if one.run.priority < run.priority and one.run.id in self.alone]

    def _may_stop(self, run: Run, one: Run) -> bool:
        """Has that one, of the run's own priority or below, had its time?"""
        if one.priority < run.priority:
            return one.id not in self.alone
        until = from_equals_until(self.policy, one)
        if until <= self.snap.now:
            return True
        self._protect(one, until)
        return False

    def _protect(self, run: Run, until: float) -> None:
        self.protected[run.id] = min(until, self.protected.get(run.id, INFINITE))


def _fewest(board: Board, request: Request, able: list[Holder]) -> list[Holder] | None:
    """Whom to stop of them; None = not even all would do."""
    return _cheapest(board, request, able) or _greedy(board, request, able)


def _spot(board: Board, request: Request, victims: list[Holder]) -> Placement:
    spot = place(board.after([one.placement for one in victims]), request)
    assert spot is not None
    return spot


def _cheapest(board: Board, request: Request, able: list[Holder]) -> list[Holder] | None:
    """Node by node; None = so it does not fit, or the request is of a kind that must be tried out."""
    needs = shares(board.layout, request)
    if not needs:
        return None
    index, fit = board.layout.index, board.layout.fits(request)
    on: dict[int, list[tuple[Holder, int]]] = {}
    for one in able:
        for part in one.placement:
            n = index.get(part.node, -1)
            if n >= 0 and part.gpus & fit[n]:
                on.setdefault(n, []).append((one, (part.gpus & fit[n]).bit_count()))
    most = max(needs)
    offers: list[tuple[float, int, int, list[Holder]]] = []
    for n in range(len(board.free)):
        free = (board.free[n] & fit[n]).bit_count()
        if free >= most:
            offers.append((0.0, free, n, []))
        elif n in on:
            chosen = _on_node(on[n], most - free)
            if chosen is not None:
                taken, left = chosen
                offers.append((sum(one.cost for one in taken), left, n, taken))
    if len(offers) < len(needs):
        return None
    offers.sort(key=lambda offer: offer[:3])
    found = list({one.run.id: one for offer in offers[: len(needs)] for one in offer[3]}.values())
    later = board.after([one.placement for one in found])
    if place(later, request) is None:
        return None
    if min(needs) < most:  # of the last node less was needed than was looked for
        _spare(later, request, found)
    return found


def _on_node(candidates: list[tuple[Holder, int]], missing: int) -> tuple[list[Holder], int] | None:
    """The least urgent first until enough is free, then whoever is not needed is spared; and what is left over."""
    chosen: list[tuple[Holder, int]] = []
    for candidate in candidates:
        chosen.append(candidate)
        missing -= candidate[1]
        if missing <= 0:
            break
    if missing > 0:
        return None
    for candidate in reversed(chosen[:-1]):
        if missing + candidate[1] <= 0:
            missing += candidate[1]
            chosen.remove(candidate)
    return [one for one, _ in chosen], -missing


def _greedy(board: Board, request: Request, able: list[Holder]) -> list[Holder] | None:
    """Whatever the request is like: the least urgent first until it fits, then whoever is not needed is spared."""
    later = board.copy()
    victims: list[Holder] = []
    for one in able:
        later.give(one.placement)
        victims.append(one)
        if place(later, request) is not None:
            break
    else:
        return None
    _spare(later, request, victims)
    return victims


def _spare(later: Board, request: Request, victims: list[Holder]) -> None:
    """Take back everyone without whom it still fits, the most urgent first."""
    for one in reversed(victims.copy()):
        later.take(one.placement)
        if place(later, request) is None:
            later.give(one.placement)
        else:
            victims.remove(one)


def request(policy: Policy, runs: Mapping[str, Run], victim: Preempt, at: float) -> e.StopRequested:
    """Ask a victim of a plan to end: by its own signal, with its own grace up to the cap. The same live, in a forecast
    and in a simulation."""
    spec = runs[victim.run_id].spec
    return e.StopRequested(
        at=at,
        run_id=victim.run_id,
        attempt_id=victim.attempt_id,
        cause=Cause.PREEMPTED,
        signal=spec.checkpoint_signal,
        grace_s=for_others_s(policy, spec),
        for_run=victim.for_run,
    )


def _seen(placement: Placement, hidden: Mapping[str, int]) -> bool:
    return not hidden or not any(part.gpus & hidden.get(part.node, 0) for part in placement)


def _since(run: Run) -> float:
    assert run.attempt is not None
    return run.attempt.planned_at


def asked(victim: Run, run: Run) -> Preempt:
    assert victim.attempt is not None
    return Preempt(victim.id, victim.attempt.id, run.id)
