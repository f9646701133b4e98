"""Conservative backfill: everybody who waits has a reservation, in order, and nobody may delay anybody's.

The future is a row of steps: at each moment at which somebody is expected to end or to begin, how much is free on each
node from then on. A run is booked at the first step from which it fits for as long as it can take. GPUs of a node are
counted and not named: which of them a run gets is settled when it starts, and since each is given back before the next
booking needs it, there is always one.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import reduce
from operator import and_

from rota.core.board import Board
from rota.core.place import place
from rota.core.plan import Reserve
from rota.core.policy import Ordering
from rota.core.progress import bound_s, left_of
from rota.core.resources import Placement, Slice, lowest
from rota.core.run import Run
from rota.core.snapshot import Snapshot
from rota.core.zones import Zones

LATE_S = 1.0  # what is past its expected end is not gone: it is believed to end after this moment
Step = list[int]  # for each node how many GPUs are free, or which


class Profile:
    def __init__(self, snap: Snapshot, zones: Zones, started: list[tuple[float, Placement]]) -> None:
        self.now, self.zones, self.board = snap.now, zones, zones.main
        layout = self.board.layout
        # Where GPUs of one node are not alike, because some are reserved or of another kind, they have to be named.
        self.named = bool(zones.calendar) or any(len({gpu[1:] for gpu in kind.gpus}) > 1 for kind in layout.kinds)
        self.times: list[float] = [snap.now]
        self.steps: list[Step] = [list(layout.usable) if self.named else [mask.bit_count() for mask in layout.usable]]
        for moment in zones.edges():
            self._split(moment)
        for end, placement in started:
            self._hold(end, placement)
        # Who came later and passed was let by because that moved nobody's booking. So those bookings are made without
        # looking at it, or they would move after all.
        by_arrival = snap.policy.ordering is Ordering.FCFS
        held = [(snap.runs[run_id].seq if by_arrival else 0, end, run_id) for end, run_id in snap.timeline]
        self._later = sorted(held, reverse=True)
        self._runs = snap.runs

    def _hold(self, end: float, placement: Placement) -> None:
        """Somebody runs there until then."""
        index = self.board.layout.index
        self._take(self.now, max(end, self.now + LATE_S), tuple(part for part in placement if part.node in index))

    def book(self, run: Run) -> Reserve | None:
        """Its place in the future; None = there is none. One that begins now is for the caller to start."""
        while self._later and self._later[-1][0] < run.seq:
            _, end, run_id = self._later.pop()
            attempt = self._runs[run_id].attempt
            assert attempt is not None
            self._hold(end, attempt.placement)
        length = max(1.0, left_of(run) if run.spec.time_limit_s is None else bound_s(run))
        for first, at in enumerate(self.times):
            view = self._least_free(run, first, at + length)
            spot = None if view is None else place(view, run.spec.request)
            if spot is not None:
                self._take(at, at + length, spot)
                return Reserve(run.id, at, spot) if at > self.now else self._begin(run, spot)
        return None

    def _least_free(self, run: Run, first: int, until: float) -> Board | None:
        """A board of what is free on each node through all of that time, as far as the run may have it."""
        zone = self.zones.of(run, self.times[first])
        if zone is None:
            return None
        last = bisect_left(self.times, until, first + 1)
        columns = zip(*self.steps[first:last], strict=True)
        usable = self.board.layout.usable
        if self.named:
            free = [reduce(and_, column) for column in columns]
        else:
            free = [lowest(usable[n], max(0, min(column))) for n, column in enumerate(columns)]
        board = self.board.with_free(free)
        return self.zones.seen(board, zone) if zone else board

    def _take(self, start: float, end: float, spot: Placement) -> None:
        self._split(end)
        index = self.board.layout.index
        for k in range(bisect_left(self.times, start), bisect_left(self.times, end)):
            step = self.steps[k]
            for part in spot:
                n = index[part.node]
                step[n] = step[n] & ~part.gpus if self.named else step[n] - part.gpus.bit_count()

    def _split(self, at: float) -> None:
        k = bisect_left(self.times, at)
        if at > self.times[0] and (k == len(self.times) or self.times[k] != at):
            self.times.insert(k, at)
            self.steps.insert(k, self.steps[k - 1].copy())

    def _begin(self, run: Run, spot: Placement) -> Reserve:
        """On GPUs that are free this moment. Where somebody is late there are none: a little later, then."""
        parts = []
        for part in spot:
            free, count = self.board.free[self.board.layout.index[part.node]], part.gpus.bit_count()
            if (part.gpus & ~free) if self.named else count > free.bit_count():
                return Reserve(run.id, self.now + LATE_S, spot)
            gpus = part.gpus if self.named else lowest(free, count)
            parts.append(Slice(part.node, gpus, part.cpus, part.memory_gb))
        return Reserve(run.id, self.now, tuple(parts))
