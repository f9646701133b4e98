"""When will it start, and how sure is that: many walks (core/walk.py) in which runs last what chance gives them.

Each walk draws each run's length from what is known of runs like it. The draws are stratified: over all walks a run
gets one length out of every part of its distribution, in an order of its own, so that few walks suffice. Chance is a
hash of run and walk: the same question has the same answer.

The work is bounded. What lies beyond what can be afforded is told from the work that stands before it, and called
rough.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rota.core.distribution import SHORTEST_S, Distribution
from rota.core.predict import distribution, hash_text
from rota.core.rank import before
from rota.core.run import Run
from rota.core.snapshot import snapshot
from rota.core.state import State
from rota.core.walk import BUDGET, Walk, fork_cost

MOST, FEWEST = 16, 4  # walks; powers of two
MANY_WAITING = 40_000  # walk copies of such a queue only FEWEST times
QUICKEST, SLOWEST = 0.7, 1.3  # times what is told from the work alone: how far off that may be
SURE, UNSURE_S = 1.5, 60.0
ENOUGH = 9  # earlier runs: of fewer, the time by which 9 of 10 end lies beyond the longest that was seen

_GOLDEN, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Odds:
    p50: float | None  # it starts by then as likely as not; None = nothing that is known will start it
    p90: float | None  # 9 times of 10 by then
    scenarios: int
    confidence: str  # good, fair, rough
    rests_on: str  # in words
    least: float = 0.0  # it cannot start before this, whoever ends when: what is reserved stays so


NOTHING = Odds(None, None, 0, "", "")


class Scenarios:
    """About one moment; asked again, they go on from where they are."""

    def __init__(self, state: State, now: float) -> None:
        self.state, self.now = state, now
        self._known: dict[str, Distribution] = {}
        self._drawn: dict[tuple[str, int], float] = {}
        self._walks: list[Walk] = []
        self._beyond: dict[str, float] = {}

    def odds(self, run_id: str) -> Odds:
        if not self._walks:
            self._walks = [self._walk(number) for number in range(_how_many(self.state))]
        each = max(0, BUDGET // len(self._walks) - fork_cost(self.state))
        found = [self._start(number, run_id, each) for number in range(len(self._walks))]
        starts = sorted(start for start, _ in found)
        p50, p90 = quantile(starts, 0.5), quantile(starts, 0.9)
        if p50 is None:
            return NOTHING
        kinds = self._kinds(run_id)
        rough = any(guessed for _, guessed in found) or 2 * kinds["a guess"] > kinds.total()
        narrow = p90 is not None and p90 - self.now <= SURE * (p50 - self.now) + UNSURE_S
        few = 2 * self._resting_on_few(run_id) > kinds.total()
        confidence = "rough" if rough else "good" if narrow and not few else "fair"
        return Odds(p50, p90, len(starts), confidence, _words(kinds), self._least(run_id, each))

    def _least(self, run_id: str, budget: int) -> float:
        """If everybody in the way were done at once."""
        if not self.state.calendar:
            return self.now
        return Walk(self.state, self.now, lambda run, done_s: SHORTEST_S).find(run_id, budget) or self.now

    def _start(self, number: int, run_id: str, budget: int) -> tuple[float, bool]:
        """When it starts in this walk, inf = never; and whether that lies beyond what could be walked."""
        walk = self._walks[number]
        if walk.cost == 0:
            walk.step()  # whatever it costs: who goes at once is told so
        at = walk.find(run_id, budget)
        if at is not None:
            return at, False
        if walk.over or run_id not in walk.world.queue:
            return math.inf, False
        if run_id not in self._beyond:
            self._beyond[run_id] = _beyond(walk, run_id)  # much the same in every walk
        doubt = SLOWEST + (QUICKEST - SLOWEST) * share("", number, len(self._walks))
        return walk.now + doubt * self._beyond[run_id], True

    # -- draws --------------------------------------------------------------------------------------------------------
    def _walk(self, number: int) -> Walk:
        return Walk(self.state, self.now, lambda run, done_s: self._lasts(run, done_s, number))

    def _lasts(self, run: Run, done_s: float, walk: int) -> float:
        """Its length is drawn once, given how far it has come now; later attempts in the walk use up the same one."""
        whole = self._drawn.get((run.id, walk))
        if whole is None:
            left = self.known(run).remaining(done_s).quantile(share(run.id, walk, _how_many(self.state)))
            whole = self._drawn[run.id, walk] = done_s + left
        return max(1.0, whole - done_s)

    def known(self, run: Run) -> Distribution:
        found = self._known.get(run.id)
        if found is None:
            found = self._known[run.id] = distribution(self.state.history, run)
        return found

    def _kinds(self, run_id: str) -> Counter[str]:
        """What the lengths come from of those that stood before it in the first walk."""
        return Counter("earlier runs" if known.count else known.source for known in self._in_the_way(run_id))

    def _resting_on_few(self, run_id: str) -> int:
        return sum(0 < known.count < ENOUGH for known in self._in_the_way(run_id))

    def _in_the_way(self, run_id: str) -> Iterator[Distribution]:
        walk = self._walks[0]
        until = walk.starts.get(run_id, math.inf)
        for other, known in self._known.items():
            if other != run_id and walk.starts.get(other, 0.0) <= until:
                yield known


def share(run_id: str, walk: int, walks: int) -> float:
    """Where in its distribution a run's length lies in this walk: each of `walks` equal parts once over all of them."""
    mark = _mixed(hash_text(run_id))
    part = ((walk * (2 * (mark & 7) + 1) + (mark >> 3)) % walks) ^ (mark >> 40 & (walks - 1))
    inside = _mixed(mark + (walk + 1) * _GOLDEN) / (_MASK + 1)
    return (part + 0.02 + 0.96 * inside) / walks


def _mixed(value: int) -> int:
    """The finish of splitmix64: neighbours come out far apart."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def quantile(ranked: Sequence[float], q: float) -> float | None:
    """Of what a further draw would be: the i-th of n is the quantile i / (n + 1). None = never."""
    place = min(max(q * (len(ranked) + 1) - 1, 0.0), len(ranked) - 1.0)
    low, high = ranked[int(place)], ranked[math.ceil(place)]
    return None if math.isinf(high) else low + (high - low) * (place - int(place))


def _how_many(state: State) -> int:
    most = MOST
    while most > FEWEST and most * state.waiting > FEWEST * MANY_WAITING:
        most //= 2
    return most


def _beyond(walk: Walk, run_id: str) -> float:
    """How long all that stands before it will take, spread over all GPUs."""
    world = walk.world
    snap = snapshot(world, walk.now)
    work = sum(world.runs[other].spec.request.gpus * world.runs[other].expected_s for other in before(snap, run_id))
    for end, other in world.timeline:
        work += world.runs[other].spec.request.gpus * max(0.0, end - walk.now)
    gpus = sum(mask.bit_count() for mask in world.board.layout.usable)
    return work / max(1, gpus)


def _words(kinds: Counter[str]) -> str:
    if not kinds:
        return "nobody is in the way"
    listed = ", ".join(f"{count} by {kind}" for kind, count in kinds.most_common())
    return f"how long {kinds.total()} run{'s' * (kinds.total() != 1)} will take: {listed}"
