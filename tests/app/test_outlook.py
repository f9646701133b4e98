"""Why it waits and when it starts: worked out once for all who ask, and never out of date."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from rota.app import outlook
from rota.app.commands import Release
from rota.app.outlook import Outlook
from rota.core.explain import Explanation
from rota.core.forecast import forecast
from rota.core.state import State
from rota.core.walk import BUDGET
from tests.app.house import ROOT
from tests.unit.core.kit import Lab, node


class Counted:
    """An outlook on a house with the runs a, b and c that counts how often it thinks. A walk takes `cost_s`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.version, self.now, self.cost_s, self.spent_s = 1, 100.0, 0.0, 0.0
        self.forks: list[float] = []
        self.walks: list[float] = []
        lab = Lab(node("x"), checked=False)
        self.runs = {name: replace(lab.state.runs[lab.submit()], id=name) for name in "abc"}
        self.begun, self.go = Event(), Event()
        self.go.set()
        monkeypatch.setattr(outlook, "Walk", partial(FakeWalk, self))
        monkeypatch.setattr(outlook, "monotonic", lambda: self.spent_s)
        self.outlook = Outlook(lambda: self.version, lambda: self.now, self._fork, self.runs.get)

    def _fork(self) -> tuple[State, float]:
        self.forks.append(self.now)
        state = State()
        state.runs = dict(self.runs)
        return state, self.now


class FakeWalk:
    """Everybody starts 5 s from now."""

    cost = 0

    def __init__(self, counted: Counted, state: State, now: float, lasts: object) -> None:
        self._counted, self._now = counted, now

    def find(self, run_id: str, budget: int) -> float:
        if not self.cost:
            self.cost = 1
            self._counted.walks.append(self._now)
            self._counted.spent_s += self._counted.cost_s
            self._counted.begun.set()
            assert self._counted.go.wait(60)
        return self._now + 5


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    yield Counted(monkeypatch)


def test_twenty_who_ask_at_once_cost_one_look(counted: Counted) -> None:
    counted.go.clear()
    together, found = Barrier(20), list[Any]()

    def ask() -> None:
        together.wait(60)
        found.append(counted.outlook.eta("a"))

    threads = [Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    assert counted.begun.wait(60)
    counted.go.set()
    for thread in threads:
        thread.join(60)
    assert found == [105.0] * 20
    assert (counted.walks, counted.forks) == ([100.0], [100.0])


def test_one_copy_serves_every_question_about_one_moment(counted: Counted) -> None:
    for run_id in "abc":
        assert counted.outlook.eta(run_id) == 105.0
    assert counted.outlook.explain("d") == Explanation("d", ()), "it is not there"
    assert counted.forks == [100.0]


def test_it_is_looked_again_when_something_happened_or_time_went_by(counted: Counted) -> None:
    counted.outlook.eta("a")
    counted.version = 2
    counted.outlook.eta("a")
    counted.now += 0.5
    assert counted.outlook.eta("a") == 105.0, "still fresh"
    counted.now += 1.0
    assert counted.outlook.eta("a") == 106.5
    assert len(counted.forks) == 3


def test_one_walk_tells_the_start_of_every_run(counted: Counted) -> None:
    for run_id in "abc":
        assert counted.outlook.eta(run_id) == 105.0
        assert counted.outlook.latest(run_id) == 105.0
    assert counted.walks == [100.0, 100.0], "one of what is expected, one of the longest"


def test_what_was_dear_is_good_for_a_while_unless_the_run_itself_has_changed(counted: Counted) -> None:
    counted.cost_s = 4.0
    assert counted.outlook.eta("a") == 105.0
    counted.version, counted.now = 2, 104.0
    assert counted.outlook.eta("b") == 105.0, "something has happened, but not to it"
    counted.runs["b"] = replace(counted.runs["b"], priority=4)
    assert counted.outlook.eta("b") == 109.0, "who acted sees it at once"
    assert counted.walks == [100.0, 104.0]
    counted.version, counted.now = 3, 104.0 + 4.0 * outlook.REST
    assert counted.outlook.eta("a") == counted.now + 5.0
    assert counted.walks == [100.0, 104.0, counted.now]


@pytest.mark.parametrize("budget", [BUDGET, 4000])
def test_a_walk_that_is_shared_tells_what_one_for_each_run_would(monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    monkeypatch.setattr(outlook, "BUDGET", budget)
    lab = Lab(node("x"), node("y"), checked=False)
    chance = random.Random(budget)
    for _ in range(60):
        lab.submit(chance.choice([1, 2, 4, 8]), time_limit_s=chance.randrange(10, 500), priority=chance.choice([1, 2]))
    lab.step()
    view = Outlook(lambda: 1, lambda: lab.now, lambda: (lab.state.fork(), lab.now), lab.state.runs.get)
    waiting = [run.id for run in lab.state.runs.values() if run.attempt is None]
    chance.shuffle(waiting)
    told = {run_id: view.eta(run_id) for run_id in waiting}
    assert told == {one: forecast(lab.state, lab.now, [one], budget=budget).get(one) for one in waiting}
    assert (None in told.values()) == (budget == 4000), "beyond the budget nothing is told"


def test_a_look_that_fails_is_not_remembered(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> float:
        raise ValueError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(FakeWalk, "find", fails)
        with pytest.raises(ValueError, match="defect"):
            counted.outlook.eta("a")
    assert counted.outlook.eta("a") == 105.0


def test_the_house_thinks_away_from_its_loop_and_sees_every_change(house: Any) -> None:
    run_id = house.submit("true", who=ROOT, held=True)
    asked: list[str] = []
    call = house.loop.call

    def noted(work: Any) -> Any:
        asked.append("loop")
        return call(work)

    house.loop.call = noted
    for _ in range(20):
        assert [reason.code for reason in house.rota.explain(run_id).reasons] == ["held"]
        assert house.rota.eta(run_id) is None
    assert len(asked) < 20, "not once for each question"
    house.do(Release(run_id))
    assert "held" not in [reason.code for reason in house.rota.explain(run_id).reasons], "who acted sees it at once"
    house.wait(run_id)
