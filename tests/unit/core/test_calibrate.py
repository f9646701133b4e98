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


def test_horizons():
    assert [horizon(s) for s in (0, 599, 600, 3599, 6 * 3600, 1e9)] == [0, 0, 1, 1, 3, 3]


def test_run_times_are_held_against_what_was_expected_by_where_that_came_from():
    rows = run_sheet([Ran("history", 100, 50), Ran("history", 100, 120), Ran("limit", 3600, 36)])
    assert [(row.source, row.count) for row in rows] == [("all", 3), ("history", 2), ("limit", 1)]
    assert (rows[1].within, rows[1].ratio) == (0.5, 0.5)
    assert rows[2].ratio == pytest.approx(0.01)
    assert run_sheet([])[0].within is None
