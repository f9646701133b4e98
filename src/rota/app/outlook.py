"""Why a run waits and when it will start, worked out once for all who ask.

Both think on a copy of the state, away from the loop's thread: one copy serves everybody until something happens, and
an answer is given again for as long as it is fresh. Twenty dashboards that poll cost what one costs, whether they ask
about one run or about twenty: a walk into the future passes all of them. How sure a start is takes many walks. The
longer walks took the longer they are good for, so that a long queue is not walked all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from time import monotonic, sleep
from typing import Any, TypeVar

from rota.core.alternatives import Alternative, alternatives
from rota.core.explain import Explanation, explain, obstacle, waits_for_room
from rota.core.forecast import FOREVER_S, at_most, believed
from rota.core.odds import NOTHING, Odds, Scenarios
from rota.core.predict import History
from rota.core.run import Run, RunState
from rota.core.state import State
from rota.core.walk import BUDGET, Lasts, Walk

T = TypeVar("T")
Fork = Callable[[], tuple[State, float]]  # a copy of the state with what is known of the past, and the time
FRESH_S = 1.0
REST = 5.0  # times what the walks of a moment have cost, they are good for others too
AT_ONCE = 20_000  # of the cost of a walk, before others who ask for a start may go on with it
GIVE_WAY_S = 0.001
DEAR_S = 0.5  # starts that cost less are told anew whenever something happened


@dataclass(frozen=True, slots=True)
class Prospect:
    """When it starts and how sure that is, or why nothing can be told."""

    at: float  # the moment it is told of
    odds: Odds = NOTHING
    why: str = ""
    by_room: bool = True  # it waits for room alone


class Outlook:
    """`run_of` tells a run as it is now; None = it is not there."""

    def __init__(
        self, version: Callable[[], int], now: Callable[[], float], fork: Fork, run_of: Callable[[str], Run | None]
    ) -> None:
        self._version, self._now, self._fork, self._run_of = version, now, fork, run_of
        self._lock = Lock()
        self._world: _World | None = None
        self._walked: _World | None = None  # the one in which odds were last worked out
        self._foretold: _World | None = None  # and starts

    def explain(self, run_id: str) -> Explanation:
        return self._current().answer(("explain", run_id), lambda state, now: _explain(state, now, run_id))

    def eta(self, run_id: str) -> float | None:
        """None = nothing that is known will start it; so it is while scheduling is paused."""
        return self._patient_of_starts(run_id).start(run_id, believed)

    def latest(self, run_id: str) -> float | None:
        """If everybody uses all of their time and nobody comes who goes first; None = that has no end, or none that
        can be seen."""
        world = self._patient_of_starts(run_id)
        found = world.start(run_id, at_most)
        return found if found is not None and found - world.made_at < FOREVER_S / 2 else None

    def prospect(self, run_id: str) -> Prospect:
        return self._patient(run_id).prospect(run_id)

    def alternatives(self, run_id: str) -> tuple[Alternative, ...]:
        """What would start it sooner, best first."""
        return self._patient(run_id).alternatives(run_id)

    def _current(self) -> _World:
        version, now = self._version(), self._now()
        with self._lock:
            world = self._world
            if world is None or world.version != version or not 0 <= now - world.made_at < FRESH_S:
                world = self._world = _World(version, now, self._fork)
            return world

    def _patient(self, run_id: str) -> _World:
        """The moment that was walked last, if its rest is not over and the run stood there as it does now."""
        walked = self._walked
        if walked is not None and self._is_good(walked, walked.spent_s, run_id):
            return walked
        world = self._walked = self._current()
        return world

    def _patient_of_starts(self, run_id: str) -> _World:
        world = self._foretold
        if world is not None and world.foretold_s >= DEAR_S and self._is_good(world, world.foretold_s, run_id):
            return world
        world = self._foretold = self._current()
        return world

    def _is_good(self, world: _World, cost_s: float, run_id: str) -> bool:
        return 0 <= self._now() - world.made_at < REST * cost_s and world.has(self._run_of(run_id))


class _World:
    """The state at one moment, and what was found out about it."""

    def __init__(self, version: int, made_at: float, fork: Fork) -> None:
        self.version, self.made_at, self._fork = version, made_at, fork
        self.spent_s = 0.0  # on walks
        self._thinking = Lock()  # thinking moves the copy, and one thread of it is enough
        self._copy: tuple[State, float] | None = None
        self._walking = Lock()  # apart: who asks why does not wait for who asks when
        self._scenarios: Scenarios | None = None
        self._foretelling = Lock()
        self._begun: float | None = None  # since when a start is being looked for
        self._foretold_s = 0.0
        self._starts: dict[Callable[[History], Lasts], Walk] = {}
        self._lock = Lock()
        self._answers: dict[tuple[str, str], Future[Any]] = {}

    def has(self, run: Run | None) -> bool:
        """Whether a run stands here as it does now."""
        if run is None or self._copy is None:
            return False
        then = self._copy[0].runs.get(run.id)
        return then is not None and (then.state, then.priority, then.spec) == (run.state, run.priority, run.spec)

    @property
    def foretold_s(self) -> float:
        """What the walks for starts have cost, with that of the one under way."""
        begun = self._begun
        return self._foretold_s + (0.0 if begun is None else monotonic() - begun)

    def start(self, run_id: str, lasts: Callable[[History], Lasts]) -> float | None:
        """When a run starts in the walk that all questions share. A question leads it on only as far as needed, and
        all together no further than one alone could. One that needs long gives way to the others again and again."""
        while True:
            with self._foretelling:
                walk, found = self._go_on(run_id, lasts)
            if walk is None or found is not None or walk.over or walk.cost >= BUDGET:
                return found
            sleep(GIVE_WAY_S)

    def _go_on(self, run_id: str, lasts: Callable[[History], Lasts]) -> tuple[Walk | None, float | None]:
        """Lead the walk on for a while; no walk: scheduling is paused."""
        begun = self._begun = monotonic()
        try:
            if self._think(lambda state, now: state.paused):
                return None, None
            walk = self._starts.get(lasts)
            if walk is None:
                walk = self._think(lambda state, now: Walk(state, now, lasts(state.history)))
            found = walk.find(run_id, min(AT_ONCE, BUDGET - walk.cost))
            self._starts[lasts] = walk
            return walk, found
        except BaseException:
            self._starts.pop(lasts, None)  # it may stand anywhere
            raise
        finally:
            self._begun = None
            self._foretold_s += monotonic() - begun

    def answer(self, question: tuple[str, str], work: Callable[[State, float], T]) -> T:
        return self._once(question, lambda: self._think(work))

    def prospect(self, run_id: str) -> Prospect:
        why = self.answer(("explain", run_id), lambda state, now: _explain(state, now, run_id))
        return self._once(("prospect", run_id), lambda: self._walk(lambda ways: _prospect(ways, why)))

    def alternatives(self, run_id: str) -> tuple[Alternative, ...]:
        return self._once(("alternatives", run_id), lambda: self._walk(lambda ways: _alternatives(ways, run_id)))

    def _once(self, question: tuple[str, str], find: Callable[[], T]) -> T:
        with self._lock:
            first = question not in self._answers
            answer: Future[T] = self._answers.setdefault(question, Future())
        if first:
            try:
                answer.set_result(find())
            except BaseException as error:
                # whoever waits for the same must not wait for ever; the next one tries again
                with self._lock:
                    del self._answers[question]
                answer.set_exception(error)
                raise
        return answer.result()

    def _think(self, work: Callable[[State, float], T]) -> T:
        with self._thinking:
            if self._copy is None:
                self._copy = self._fork()
            return work(*self._copy)

    def _walk(self, find: Callable[[Scenarios], T]) -> T:
        with self._walking:
            begun = monotonic()
            try:
                if self._scenarios is None:
                    self._scenarios = self._think(_scenarios)
                return find(self._scenarios)
            finally:
                self.spent_s += monotonic() - begun


def _explain(state: State, now: float, run_id: str) -> Explanation:
    return explain(state, now, run_id) if run_id in state.runs else Explanation(run_id, ())


def _scenarios(state: State, now: float) -> Scenarios:
    own = state.fork()
    own.history = state.history
    return Scenarios(own, now)


def _prospect(ways: Scenarios, why: Explanation) -> Prospect:
    run = ways.state.runs.get(why.run_id)
    if run is None or run.state is not RunState.QUEUED or ways.state.paused:
        return Prospect(ways.now, why=obstacle(why))
    odds = ways.odds(run.id)
    return Prospect(ways.now, odds, obstacle(why) if odds.p50 is None else "", waits_for_room(why))


def _alternatives(ways: Scenarios, run_id: str) -> tuple[Alternative, ...]:
    """Who is held, or waits for others, would not start sooner by asking for less."""
    state = ways.state
    return alternatives(state, ways.now, state.runs[run_id]) if run_id in state.queue and not state.paused else ()
