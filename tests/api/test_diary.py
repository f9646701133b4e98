"""What the journey tells of runs is read in portions, and is the same however large these are."""

from __future__ import annotations

from typing import Any

import pytest

from rota.api import diary
from rota.api.house import House
from rota.app.commands import Cancel, Edit, Pause, Submit
from rota.core.run import Spec
from tests.api.kit import ROOT

LABELS = {"chat_session_id": "one"}


def told(house: House, run_id: str) -> list[list[dict[str, Any]]]:
    asked = [(None, None, 2000), (None, None, 5), (run_id, None, 2000), (None, "one", 2000), (None, "other", 2000)]
    return [diary.happened(house, ROOT, *which) for which in asked]


def test_a_journey_is_the_same_in_portions(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.service.do(ROOT, Pause())
    made: list[str] = []
    for number in range(10):
        spec = Spec(f"run {number}", ("true",), "/", labels=LABELS if number % 2 else {})
        run = house.service.do(ROOT, Submit(spec, user="ann", held=number > 4))
        made.append(run.id)
        house.service.do(ROOT, Edit(run.id, argv=("false",)))
        house.service.do(ROOT, Cancel(run.id))
    whole = told(house, made[-1])
    assert [len(events) for events in whole] == [25, 5, 2, 12, 0]
    assert [event["timestamp"] for event in whole[0]] == sorted((e["timestamp"] for e in whole[0]), reverse=True)
    read = house.service.events
    most: list[int] = []

    def counted(*which: Any) -> Any:
        found = read(*which)
        most.append(len(found))
        return found

    monkeypatch.setattr(diary, "AT_ONCE", 4)
    monkeypatch.setattr(house.service, "events", counted)
    assert told(house, made[-1]) == whole
    assert max(most) <= 4
    most.clear()
    diary.happened(house, ROOT, None, None, 1)
    assert sum(most) < 20, "no more is read than is asked for"
