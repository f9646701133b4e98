"""What would start it sooner. Each change is lived through like the run as it is: the same forecast on a fork in which
the run asks for less, so that what is promised comes true as far as the forecast does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

from rota.core import changes
from rota.core.changes import Change
from rota.core.decide import decide
from rota.core.forecast import forecast, likely
from rota.core.run import Run
from rota.core.snapshot import Snapshot, snapshot
from rota.core.state import State
from rota.core.suggest import suggest
from rota.core.walk import fork_cost, pass_cost

TRIED = 8
BUDGET = 500_000
LEAST_S, LEAST_SHARE = 60.0, 0.05  # of the wait; what helps less is not worth a word
NOW_S = 1.0


@dataclass(frozen=True, slots=True)
class Alternative:
    words: str  # "with 4 GPUs"
    start: float
    sooner_s: float | None  # None = as it is, no start can be foretold
    now: bool


def alternatives(state: State, now: float, run: Run, budget: int = BUDGET) -> tuple[Alternative, ...]:
    """Best first. `budget` is for all of them together; `state.history` is what is believed."""
    dear = fork_cost(state) + pass_cost(state)
    tried = max(2, min(TRIED, budget // dear - 1))
    each = max(1, budget // (tried + 1) - dear)
    as_it_is = forecast(state, now, [run.id], budget=each, lasts=likely).get(run.id)
    if as_it_is is not None and as_it_is - now < LEAST_S:
        return ()
    world = state.fork()
    world.history = state.history
    found = []
    with_fewer = math.inf  # the soonest start that some smaller number of GPUs would bring
    for change in islice(_candidates(state, now, run), tried):
        world.put(change.run)
        until = math.inf if as_it_is is None else as_it_is
        start = forecast(world, now, [run.id], budget=each, until=until, lasts=likely).get(run.id)
        if start is None:
            continue
        sooner_s = None if as_it_is is None else as_it_is - start
        if sooner_s is not None and sooner_s <= max(LEAST_S, LEAST_SHARE * (sooner_s + start - now)):
            continue
        if change.run.spec.request.gpus < run.spec.request.gpus:
            if start > with_fewer - LEAST_S:  # who gives up more GPUs wants something for it
                continue
            with_fewer = start
        found.append(Alternative(change.words, start, sooner_s, start - now < NOW_S))
    return tuple(sorted(found, key=lambda one: one.start))


def _candidates(state: State, now: float, run: Run) -> Iterator[Change]:
    snap = snapshot(state, now)
    plan = decide(snap)
    seen: set[str] = set()
    listed = chain(
        changes.gentle(snap, run, plan), _usual(state, run), _largest(snap, run), changes.half(run), changes.raised(run)
    )
    for change in listed:
        if change.words not in seen:
            seen.add(change.words)
            yield change


def _usual(state: State, run: Run) -> Iterator[Change]:
    """The limit that its past suggests, where it has none or a far longer one."""
    said = suggest(state.history, run.user, run.spec)
    if said is not None:
        yield changes.limited(run, said.limit_s)


def _largest(snap: Snapshot, run: Run) -> Iterator[Change]:
    for change in changes.fewer(snap, run):
        yield change
        return
