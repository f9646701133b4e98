"""Why a run waits and when it will start, worked out once for all who ask.

Both think on a copy of the state, away from the loop's thread: one copy serves everybody until something happens, and
an answer is given again for as long as it is fresh. Twenty dashboards that poll cost what one costs.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Any, TypeVar

from rota.core.explain import Explanation, explain
from rota.core.forecast import forecast
from rota.core.state import State

T = TypeVar("T")
Fork = Callable[[], tuple[State, float]]  # a copy of the state, and the time
FRESH_S = 1.0


class Outlook:
    def __init__(self, version: Callable[[], int], now: Callable[[], float], fork: Fork) -> None:
        self._version, self._now, self._fork = version, now, fork
        self._lock = Lock()
        self._world: _World | None = None

    def explain(self, run_id: str) -> Explanation:
        def work(state: State, now: float) -> Explanation:
            return explain(state, now, run_id) if run_id in state.runs else Explanation(run_id, ())

        return self._current().answer(("explain", run_id), work)

    def eta(self, run_id: str) -> float | None:
        """None = nothing that is known will start it; so it is while scheduling is paused."""

        def work(state: State, now: float) -> float | None:
            return None if state.paused else forecast(state, now, [run_id]).get(run_id)

        return self._current().answer(("eta", run_id), work)

    def _current(self) -> _World:
        version, now = self._version(), self._now()
        with self._lock:
            world = self._world
            if world is None or world.version != version or not 0 <= now - world.made_at < FRESH_S:
                world = self._world = _World(version, now, self._fork)
            return world


class _World:
    """The state at one moment, and what was found out about it."""

    def __init__(self, version: int, made_at: float, fork: Fork) -> None:
        self.version, self.made_at, self._fork = version, made_at, fork
        self._thinking = Lock()  # thinking moves the copy, and one thread of it is enough
        self._copy: tuple[State, float] | None = None
        self._lock = Lock()
        self._answers: dict[tuple[str, str], Future[Any]] = {}

    def answer(self, question: tuple[str, str], work: Callable[[State, float], T]) -> T:
        with self._lock:
            first = question not in self._answers
            answer: Future[T] = self._answers.setdefault(question, Future())
        if first:
            try:
                answer.set_result(self._think(work))
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
