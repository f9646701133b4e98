"""Why it waits and when it starts: worked out once for all who ask, and never out of date."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from rota.app import outlook
from rota.app.commands import Release
from rota.app.outlook import Outlook
from rota.core.explain import Explanation
from rota.core.state import State
from tests.app.house import ROOT


class Counted:
    """An outlook on an empty house that counts how often it thinks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.version, self.now = 1, 100.0
        self.forks: list[float] = []
        self.forecasts: list[str] = []
        self.begun, self.go = Event(), Event()
        self.go.set()
        monkeypatch.setattr(outlook, "forecast", self._forecast)
        self.outlook = Outlook(lambda: self.version, lambda: self.now, self._fork)

    def _fork(self) -> tuple[State, float]:
        self.forks.append(self.now)
        return State(), self.now

    def _forecast(self, state: State, now: float, wanted: list[str]) -> dict[str, float]:
        self.forecasts += wanted
        self.begun.set()
        assert self.go.wait(60)
        return {wanted[0]: now + 5}


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
    assert (counted.forecasts, counted.forks) == (["a"], [100.0])


def test_one_copy_serves_every_question_about_one_moment(counted: Counted) -> None:
    for run_id in "abc":
        assert counted.outlook.eta(run_id) == 105.0
        assert counted.outlook.explain(run_id) == Explanation(run_id, ()), "it is not there"
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


def test_a_look_that_fails_is_not_remembered(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> dict[str, float]:
        raise ValueError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(outlook, "forecast", fails)
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
