"""What was foretold is kept, held against what happened, and corrects what is told next; over restarts, and bounded."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rota.app import calibration
from rota.app.calibration import KIND, Calibrator
from rota.app.commands import Cancel, CapGroup, Draft, Hold, PutRecord, Release, Reprioritise, SetPolicy
from rota.core.calibrate import Correction, Foretold, Scored
from rota.core.odds import Odds
from rota.core.run import Dependency, Run, RunState, When
from tests.app.house import ANN, BOB, House, until
from tests.unit.core.kit import Lab, node


def told(house: House) -> tuple[int, int]:
    """(predictions that were scored, those that wait for their run)"""
    found = house.rota.calibration()
    return found.starts[0].count, found.pending


def foretell(house: House, run_id: str) -> Odds:
    """Who asks too often is answered, but not counted: here time is given to count each."""
    house.rota._calibrator._noted_at.clear()
    return house.rota.prospect(run_id).odds


def test_a_prediction_is_scored_when_its_run_starts_also_by_the_next_server(house: House) -> None:
    first, gate = house.gated(8)
    house.in_state(first, RunState.RUNNING)
    waiting, other = house.gated(8)
    odds = foretell(house, waiting)
    assert odds.p50 is not None and odds.p90 is not None
    assert house.rota.ask(lambda state, now: now) < odds.p50 <= odds.p90
    assert told(house) == (0, 1)
    house.reopen()
    assert told(house) == (0, 1), "what was told is not forgotten"
    gate.open(2)  # one task on each node
    house.in_state(waiting, RunState.RUNNING)
    assert told(house) == (1, 0)
    house.reopen()
    assert told(house) == (1, 0)
    other.open(2)
    house.wait(waiting)


@pytest.mark.parametrize("change", [Hold, Cancel, lambda run_id: Reprioritise(run_id, 4)])
def test_what_somebody_made_another_run_of_is_not_held_against_the_prediction(house: House, change: Any) -> None:
    house.running(8)
    waiting = house.sleeper(8)
    foretell(house, waiting)
    assert told(house) == (0, 1)
    house.do(change(waiting))
    assert told(house) == (0, 0)
    until(lambda: not house.store.records(KIND), "it is gone from the disk")


def test_who_was_held_and_let_go_again_stands_in_line_anew(house: House) -> None:
    house.running(8)
    waiting = house.sleeper(8)
    foretell(house, waiting)
    house.do(Hold(waiting))
    house.do(Release(waiting))
    assert told(house) == (0, 0)


def test_who_polls_is_counted_once(house: House) -> None:
    house.running(8)
    waiting = house.sleeper(8)
    for _ in range(20):
        foretell(house, waiting)
    assert told(house) == (0, 1)


def test_nothing_is_kept_of_what_nothing_can_be_told(house: House) -> None:
    held = house.submit("true", held=True)
    prospect = house.rota.prospect(held)
    assert prospect.odds.p50 is None
    assert prospect.why.startswith("held")
    assert told(house) == (0, 0)


def test_the_newest_are_kept_and_no_more(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "SLOTS", 3)
    house.running(8)
    waiting = [house.sleeper(8) for _ in range(5)]
    for run_id in waiting:
        foretell(house, run_id)
    until(lambda: len(house.store.records(KIND)) == 3, "three are on disk")
    assert told(house) == (0, 3)
    assert [run_id for run_id in waiting if house.rota._calibrator.known(run_id)] == waiting[2:]


def test_one_that_has_just_come_is_foretold_unasked(house: House) -> None:
    house.rota.sample()
    assert told(house) == (0, 0), "nobody waits"
    house.running(8)
    house.sleeper(8)
    newest = house.sleeper(8)
    house.rota.sample()
    assert house.rota._calibrator.known(newest)
    house.rota.sample()
    assert told(house) == (0, 1), "and nobody has come since"


def test_run_times_are_held_against_what_was_expected(house: House) -> None:
    house.wait_all([house.submit("true", estimate_s=60.0) for _ in range(3)])
    every, estimated = house.rota.calibration().runtimes
    assert (every.count, estimated.source, estimated.within) == (3, "estimate", 1.0)


def test_large_runs_are_looked_at_one_by_one_and_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.wait_all([house.submit("true " + "x" * 100_000) for _ in range(20)])
    tracemalloc.start()
    try:
        assert house.rota.calibration().runtimes[0].count == 20
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_500_000, "all of them together take several times 2 MB"
    house.wait(house.submit("true"))
    read: list[str] = []
    whole = house.store.run

    def read_one(run_id: str) -> Run | None:
        read.append(run_id)
        return whole(run_id)

    monkeypatch.setattr(house.store, "run", read_one)
    assert house.rota.calibration().runtimes[0].count == 21
    assert len(read) == 1, "what ended before is known"


def test_a_limit_is_suggested_once_the_command_has_shown_itself(house: House) -> None:
    def said() -> Any:
        return house.rota.suggest(house.run(house.submit("true")))

    house.wait_all([house.submit("true") for _ in range(4)])
    assert said() is None
    house.wait_all([house.submit("true") for _ in range(4)])
    until(lambda: said() is not None, "it is suggested")
    assert said().limit_s <= 120


@pytest.mark.parametrize("bound", ["its cap", "a dependency", "no GPU"])
def test_what_does_not_wait_for_room_is_foretold_but_does_not_count(house: House, bound: str) -> None:
    first = house.running(8, estimate_s=3600.0, group="s")
    match bound:
        case "its cap":
            house.do(CapGroup("s", 1))
            waiting = house.sleeper(1, group="s")
        case "a dependency":
            waiting = house.sleeper(1, depends_on=(Dependency(first, When.ENDED),))
        case _:
            house.do(SetPolicy(replace(house.rota.policy(), max_concurrent=1)))
            waiting = house.sleeper(0)
    assert foretell(house, waiting).p50 is not None
    assert told(house) == (0, 0)


@pytest.mark.parametrize("cap", [1, 5])
def test_a_cap_that_was_changed_since_is_not_held_against_the_prediction(house: House, cap: int) -> None:
    house.running(8)
    waiting = house.sleeper(8, group="s")
    foretell(house, waiting)
    assert told(house) == (0, 1)
    house.do(CapGroup("s", cap))
    assert told(house) == (0, 0)


def test_everybody_is_counted_however_often_somebody_asks(house: House) -> None:
    house.running(8)
    for who in (ANN, BOB):
        for _ in range(3):
            house.rota.prospect(house.sleeper(8, who))
    assert told(house)[1] >= 2
    assert {noted.user for noted in house.rota._calibrator._read().values()} == {"ann", "bob"}


def test_whoever_has_most_makes_room(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "SLOTS", 4)
    house.running(8)
    bobs = [house.sleeper(8, BOB) for _ in range(2)]
    anns = [house.sleeper(8) for _ in range(6)]
    for run_id in (*bobs, *anns):
        foretell(house, run_id)
    known = house.rota._calibrator.known
    assert [run_id for run_id in (*bobs, *anns) if known(run_id)] == [*bobs, *anns[-2:]]
    until(lambda: len(house.store.records(KIND)) == 4, "four are on disk")
    house.reopen()
    known = house.rota._calibrator.known
    assert [run_id for run_id in (*bobs, *anns) if known(run_id)] == [*bobs, *anns[-2:]]


def test_a_note_of_an_older_version_opens_and_finds_its_person(house: House) -> None:
    house.running(8)
    waiting = house.sleeper(8, BOB)
    foretell(house, waiting)
    (record,) = until(lambda: house.store.records(KIND), "it is on disk")
    older = {key: value for key, value in record.body.items() if key not in ("user", "cap")}
    house.do(PutRecord(Draft(KIND, record.id, json.dumps(older))))
    of_nobody = {**older, "number": 7, "run_id": "f" * 12, "waited_s": 9.0}
    house.do(PutRecord(Draft(KIND, "0007", json.dumps(of_nobody))))
    house.reopen()
    assert told(house) == (1, 1)
    assert {noted.run_id: noted.user for noted in house.rota._calibrator._read().values()} == {
        waiting: "bob",
        "f" * 12: "",
    }


def test_nine_of_ten_are_not_told_to_start_before_the_eta(house: House) -> None:
    house.running(8, estimate_s=36_000.0)
    waiting = house.sleeper(8)
    early = [Scored(Foretold(walked, walked, walked, walked), 1.0, "ann") for walked in (300, 2000, 9000, 90_000)] * 99
    house.rota._calibrator._read()
    house.rota._calibrator._people = {"ann"}
    house.rota._calibrator._corrections = {"ann": Correction(early, "ann")}
    odds, eta = house.rota.prospect(waiting).odds, house.rota.eta(waiting)
    assert eta is not None and odds.p50 is not None and odds.p90 is not None
    assert odds.p50 < eta - 10_000, "that half of them start sooner was seen"
    assert odds.p90 >= eta - 5.0


# -- the correction ----------------------------------------------------------------------------------------------------
class Kept:
    """A store that has these runs, and nothing to read from before."""

    def __init__(self) -> None:
        self.ended: dict[str, Run] = {}
        self.drafts: list[Draft] = []

    def records(self, kind: str, **_: Any) -> Sequence[Any]:
        return []

    def run(self, run_id: str) -> Run | None:
        return self.ended.get(run_id)


def test_starts_that_always_come_late_are_foretold_later() -> None:
    store: Any = Kept()
    calibrator = Calibrator(store, lambda run_id: None, store.drafts.append)
    lab = Lab(node("a"))
    lab.submit(8, takes=1e9)
    lab.step()
    run = lab.run(lab.submit(8))
    started = replace(lab.run(min(lab.state.runs)).attempt or pytest.fail(), number=1)
    first = Odds(1000.0, 1500.0, 16, "good", "")
    for n in range(100):
        run_id = f"{n:012x}"
        at = 10_000.0 * n
        told = calibrator.tell(replace(run, id=run_id), at, replace(first, p50=at + 1000, p90=at + 1500))
        if n == 0:
            assert [told.p50, told.p90] == pytest.approx([at + 1000, at + 1500])
        store.ended[run_id] = replace(run, id=run_id, queued_at=0.0, attempt=replace(started, planned_at=at + 2000))
        calibrator.settle()
    late = calibrator.tell(replace(run, id="f" * 12), 0.0, first)
    assert late.p50 is not None and 1600 < late.p50 < 2100
    assert len(store.drafts) == 200, "each is written when it is told, and when it has come true"


def test_one_person_does_not_correct_anothers_forecasts() -> None:
    store: Any = Kept()
    calibrator = Calibrator(store, lambda run_id: None, store.drafts.append)
    lab = Lab(node("a"))
    lab.submit(8, takes=1e9)
    lab.step()
    run = lab.run(lab.submit(8, user="mallory"))
    started = replace(lab.run(min(lab.state.runs)).attempt or pytest.fail(), number=1)
    for n in range(300):
        run_id, at = f"{n:012x}", 10_000.0 * n
        calibrator.tell(replace(run, id=run_id), at, Odds(at + 40_000, at + 50_000, 16, "good", ""))
        store.ended[run_id] = replace(run, id=run_id, queued_at=0.0, attempt=replace(started, planned_at=at + 60))
        calibrator.settle()
    first = Odds(40_000.0, 50_000.0, 16, "good", "")
    own = calibrator.tell(replace(run, id="e" * 12), 0.0, first)
    assert own.p50 is not None and own.p50 < 15_000, "who has them is corrected by them"
    other = calibrator.tell(replace(run, id="f" * 12, user="bob"), 0.0, first)
    assert other.p50 is not None and other.p90 is not None
    assert other.p50 > 40_000 / 1.11 and other.p90 > 50_000 / 1.11
