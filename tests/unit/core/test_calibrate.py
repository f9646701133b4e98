"""Predictions held against what happened, and corrected by it."""

from __future__ import annotations

import random

import pytest

from rota.core.calibrate import Correction, Foretold, Scored, horizon, sheet
from rota.core.runtimes import Ran, run_sheet


def test_nothing_is_told_sooner_than_it_can_be() -> None:
    sooner = Correction([scored(700, 900, 70)] * 200)
    assert sooner.corrected(700.0, 900.0).told50_s < 300.0
    told = sooner.corrected(700.0, 900.0, 650.0)
    assert told.told50_s == told.told90_s == 650.0
    assert sooner.corrected(700.0, 900.0, 2000.0).told50_s == 700.0, "the walks have seen it sooner than that"


def scored(told50_s: float, told90_s: float, waited_s: float) -> Scored:
    return Scored(Foretold(told50_s, told90_s, told50_s, told90_s), waited_s)


def test_the_sheet_counts_what_had_started_by_then():
    all_, soon, hour, *_ = sheet([scored(100, 200, 90), scored(100, 200, 150), scored(1000, 2000, 2500)])
    assert (all_.count, all_.error_s) == (3, 50)
    assert [all_.by_p50, all_.by_p90] == pytest.approx([1 / 3, 2 / 3])
    assert (soon.horizon, soon.count, soon.by_p90) == ("< 10 min", 2, 1.0)
    assert (hour.horizon, hour.count, hour.by_p90) == ("< 1 h", 1, 0.0)
    assert [row.count for row in sheet([])] == [0] * 5


def test_nothing_is_corrected_before_anything_was_scored():
    told = Correction().corrected(500.0, 900.0)
    assert [told.told50_s, told.told90_s] == pytest.approx([500, 900])


def test_starts_that_come_later_than_foretold_by_a_share_are_foretold_later_by_it():
    chance = random.Random(1)
    past = []
    for _ in range(400):
        walked = chance.uniform(700, 3000)
        foretold = Foretold(walked, 1.5 * walked, walked, 1.5 * walked)
        past.append(Scored(foretold, 2 * walked * chance.lognormvariate(0, 0.5)))
    correction = Correction(past)
    hits = [0, 0]
    for _ in range(1000):
        walked = chance.uniform(700, 3000)
        told, waited = correction.corrected(walked, 1.5 * walked), 2 * walked * chance.lognormvariate(0, 0.5)
        hits[0] += waited <= told.told50_s
        hits[1] += waited <= told.told90_s
    assert hits[0] / 1000 == pytest.approx(0.5, abs=0.06)
    assert hits[1] / 1000 == pytest.approx(0.9, abs=0.04)
    far = correction.corrected(5 * 3600.0, 8 * 3600.0)
    assert far.told50_s > 1.5 * 5 * 3600, "an horizon nobody has seen is corrected like the one before it"


def test_a_few_odd_ones_do_not_turn_everything_round():
    odd = Correction([scored(700, 900, 1e6)] * 2).corrected(700.0, 900.0)
    assert odd.told50_s < 1000
    many = Correction([scored(700, 900, 1e6)] * 2000).corrected(700.0, 900.0)
    assert many.told50_s < 8.1 * 760, "nor without bound"


def test_the_later_moment_is_never_the_earlier_one():
    late = [Scored(Foretold(700, 7000, 700, 7000), 2000)] * 200
    told = Correction(late).corrected(3000.0, 3001.0)
    assert told.told50_s <= told.told90_s


WALKED = (300.0, 2000.0, 10_000.0, 40_000.0)


def of(user: str, times: float, count: int, chance: random.Random | None = None) -> list[Scored]:
    """`count` starts in each horizon that took `times` as long as walked."""
    return [
        Scored(Foretold(s, s, s, s), times * (chance.lognormvariate(0, 0.3) if chance else 1.0) * (s + 60) - 60, user)
        for s in WALKED
        for _ in range(count)
    ]


def times(correction: Correction) -> list[float]:
    """What each horizon's two waits are corrected by."""
    told = [correction.corrected(s, s) for s in WALKED]
    return [
        (each + 60) / (s + 60)
        for one, s in zip(told, WALKED, strict=True)
        for each in (one.told50_s, max(one.told50_s, one.told90_s))
    ]


@pytest.mark.parametrize("by", [0.02, 50.0])
@pytest.mark.parametrize("honest", [0, 2, 4])
def test_no_one_person_moves_anothers_forecast_by_more_than_noise(by: float, honest: int):
    chance = random.Random(7)
    others = [one for n in range(honest) for one in of(f"p{n}", 2.0, 30, chance)]
    without, attacked = (times(Correction(notes, "p0")) for notes in (others, others + of("mallory", by, 400)))
    for before, after in zip(without, attacked, strict=True):
        assert min(1.0, before) / 1.11 <= after <= before * 1.25


def test_whoever_has_many_predictions_counts_for_no_more_than_the_next():
    honest = [one for n in range(5) for one in of(f"p{n}", 2.0, 20)]
    assert times(Correction(of("mallory", 0.02, 400) + honest, "p0"))[-1] > 1.5


def test_own_predictions_correct_though_nobody_elses_agree():
    found = times(Correction(of("ann", 3.0, 200) + of("ben", 1.0, 400), "ann"))
    assert found == pytest.approx(times(Correction(of("ann", 3.0, 200), "ann")), rel=0.11)


def test_people_who_agree_correct_also_the_forecasts_of_one_who_has_none():
    every = [one for n in range(6) for one in of(f"p{n}", 2.0, 60)]
    assert times(Correction(every, "new"))[-1] == pytest.approx(2.0, rel=0.1)
    assert times(Correction(of("p0", 2.0, 60), "new"))[-1] == pytest.approx(1.1, rel=0.01), "one alone does not"


def test_nine_of_ten_are_not_told_before_what_the_others_are_believed_to_take():
    early = Correction(of("ann", 0.25, 400), "ann")
    assert early.corrected(26_000.0, 48_000.0).told90_s < 20_000
    told = early.corrected(26_000.0, 48_000.0, expected_s=47_000.0)
    assert (told.told90_s, told.told50_s < 10_000) == (47_000.0, True)
    assert early.corrected(26_000.0, 30_000.0, expected_s=47_000.0).told90_s == 30_000.0, "as the walks have it"


def test_horizons():
    assert [horizon(s) for s in (0, 599, 600, 3599, 6 * 3600, 1e9)] == [0, 0, 1, 1, 3, 3]


def test_run_times_are_held_against_what_was_expected_by_where_that_came_from():
    rows = run_sheet([Ran("history", 100, 50), Ran("history", 100, 120), Ran("limit", 3600, 36)])
    assert [(row.source, row.count) for row in rows] == [("all", 3), ("history", 2), ("limit", 1)]
    assert (rows[1].within, rows[1].ratio) == (0.5, 0.5)
    assert rows[2].ratio == pytest.approx(0.01)
    assert run_sheet([])[0].within is None
