"""How long something may take: quantiles that come true as often as they say, also when some of it is over."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.core.classes import CLASSES, class_of
from rota.core.distribution import GRACE_S, SHORTEST_S, Distribution, bounded, estimated, guessed

seconds = st.floats(1.0, 1e6)
points = st.lists(seconds, min_size=1, max_size=24).map(lambda found: tuple(sorted(found)))
shares = st.floats(0.001, 0.999)
EXACT = 1 + 1e-9  # but for the last digits


@given(points, shares, shares, st.floats(0.0, 1e6))
def test_a_likelier_end_is_a_later_one(durations, one, other, ran_s):
    left = Distribution(durations, "").remaining(ran_s)
    low, high = sorted((one, other))
    assert SHORTEST_S <= left.quantile(low) <= left.quantile(high) * EXACT


@given(points, shares, st.floats(0.0, 1e5), st.floats(0.0, 1e5))
def test_who_has_come_further_ends_no_sooner(durations, q, one, other):
    """Having run for longer never moves the foretold end to an earlier moment."""
    early, late = sorted((one, other))
    known = Distribution(durations, "")
    assert early + known.remaining(early).quantile(q) <= (late + known.remaining(late).quantile(q)) * EXACT


@given(points, shares, st.floats(0.0, 2e6), seconds)
def test_nothing_outlasts_its_limit(durations, q, ran_s, limit):
    left = Distribution(durations, "", cap_s=limit).remaining(ran_s).quantile(q)
    assert ran_s + left <= max(limit, ran_s + SHORTEST_S) * EXACT or left == GRACE_S


@pytest.mark.parametrize("known", [3, 8, 24])
@pytest.mark.parametrize("q", [0.25, 0.5, 0.75, 0.9])
def test_the_next_one_ends_by_a_quantile_as_often_as_it_says(known, q):
    chance, hits, tries = random.Random(known), 0, 4000
    for _ in range(tries):
        past = sorted(chance.lognormvariate(6.0, 0.8) for _ in range(known))
        hits += chance.lognormvariate(6.0, 0.8) <= Distribution(past, "").quantile(q)
    assert hits / tries == pytest.approx(q, abs=0.05)


def test_what_is_left_is_judged_by_those_that_came_so_far():
    """Runs of this kind either crash within a minute or train for an hour."""
    known = Distribution((20, 25, 30, 35, 40, 3500, 3550, 3600, 3650, 3700), "")
    assert known.median < 3500
    assert known.remaining(100).median == pytest.approx(3500, abs=100), "past the crashes it is one that trains"
    assert known.remaining(3400).median < 300


def test_what_outlived_everything_goes_on_for_a_share_of_its_time():
    left = [Distribution((90, 100, 110), "").remaining(ran_s).median for ran_s in (200, 2000, 20000)]
    assert left == pytest.approx([83, 828, 8284], rel=0.01)


def test_what_is_believed_where_nothing_is_known():
    assert estimated(100).median == 100
    assert 100 < estimated(100).quantile(0.9) < 500
    assert bounded(3600).median == pytest.approx(1800)
    assert bounded(3600).quantile(0.99) == 3600
    assert guessed(14400).quantile(0.9) > 5 * guessed(14400).median


def test_a_declared_time_is_of_the_shortest_class_that_holds_it():
    assert [class_of(s) / 3600 for s in (1, 3600, 3601, 5 * 3600, 86400, 10**9)] == [1, 1, 4, 12, 24, 90 * 24]
    assert list(CLASSES) == sorted(CLASSES)
