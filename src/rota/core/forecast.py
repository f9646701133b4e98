"""When will it start, told as one moment: everybody takes what the scheduler believes.

Who has outlived that is believed to go on as long as others did that had come so far. How sure it is: core/odds.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from rota.core.predict import History, distribution
from rota.core.run import Run
from rota.core.state import State
from rota.core.walk import BUDGET, Lasts, Walk

FOREVER_S = 100 * 365 * 86400.0  # ten times what a limit may be


def believed(history: History) -> Lasts:
    """What was declared is taken at its word until the past knows better."""

    def left_s(run: Run, ran_s: float) -> float:
        found = distribution(history, run)
        if not found.count and ran_s < run.expected_s:
            return run.expected_s - ran_s
        return found.remaining(ran_s).median

    return left_s


def likely(history: History) -> Lasts:
    """The same, but most runs end well before their limit: as in the middle one of the walks of core/odds.py."""
    word = believed(history)

    def left_s(run: Run, ran_s: float) -> float:
        if run.expected_from != "limit":
            return word(run, ran_s)
        return distribution(history, run).remaining(ran_s).median

    return left_s


def at_most(history: History) -> Lasts:
    """Everybody uses all of their time, whatever the past says. Who has no limit goes on as if for ever."""

    def left_s(run: Run, ran_s: float) -> float:
        limit_s = run.spec.time_limit_s
        # a limit is of one attempt: what earlier ones kept does not shorten it
        return FOREVER_S if limit_s is None else max(0.0, limit_s - (ran_s - run.attained_s)) + run.spec.grace_s

    return left_s


def forecast(
    state: State,
    now: float,
    wanted: Collection[str],
    *,
    budget: int = BUDGET,
    until: float = math.inf,
    lasts: Callable[[History], Lasts] = believed,
) -> dict[str, float]:
    """Expected start of each wanted run. Runs that nothing will start (held, too far ahead to see) are left out."""
    walk = Walk(state, now, lasts(state.history))
    for run_id in wanted:
        walk.find(run_id, budget - walk.cost, until)
    return {run_id: walk.starts[run_id] for run_id in wanted if run_id in walk.starts}
