"""The scheduling benchmark's own sums: what it plays, what it keeps of a run that was cut short, and what it admits."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.bench.scheduling import document, goals, play, synthetic, tables
from tests.bench.scheduling.results import Results, whole_rounds
from tests.bench.scheduling.variants import AUTO, EASY, HALF, TABLE, Variant
from tests.bench.scheduling.workload import Place, facts, jobs

WEEK = "team16_week"
ONE: dict[str, Any] = {
    "mean_wait_s": 2000.0, "p50_wait_s": 0.0, "p95_wait_s": 60.0, "short_mean_wait_s": 10.0, "share_over_5min": 0.03,
    "long_mean_wait_s": 9000.0, "busy_when_full": 0.96, "wide_p99_wait_s": 50_000.0, "fluid": 2.0, "starvation": 1.0,
    "preemptions": 900, "worst_user_over_mean": 2.0, "jain": 0.8, "stoppable": 1.0,
}  # fmt: skip


def played(shakes: int) -> Results:
    facts_of = {"nodes": "2x8", "jobs": 3, "users": 1, "load": 0.9, "short": 0.5, "wide": 1, "heavy": 1}
    results = Results({"date": "", "python": "", "seed": 1}, {WEEK: facts_of})
    for name, most in play.expected()[WEEK].items():
        for number in range(1, min(shakes, most) + 1):
            results.keep(WEEK, name, number, ONE)
    return results


@pytest.mark.parametrize("kind", synthetic.KINDS, ids=lambda kind: kind.name)
def test_made_up_traces_are_what_their_kind_says_and_the_same_every_time(kind):
    place = Place(kind.name, kind.nodes)
    some = jobs(place, "class", 1, 1)
    found = facts(some, place)
    assert len(some) == kind.jobs
    assert found["users"] <= kind.users
    assert found["load"] == pytest.approx(kind.load, abs=0.03)
    assert all((job.limit_s or 0) >= job.duration_s for job in some)
    assert synthetic.make(kind.name, 2) == synthetic.make(kind.name, 2) != synthetic.make(kind.name, 3)


def test_who_may_be_stopped_at_a_small_share_may_also_at_a_larger_one():
    some = jobs(Place("lab", "2x8"), "class", 1, 1)
    quarter, half = (
        {job.id for job in Variant("", "auto", preemptible=share).told(some, 1) if job.preemptible}
        for share in (0.25, 0.5)
    )
    assert quarter < half
    assert len(half) == pytest.approx(len(some) / 2, rel=0.1)


def test_of_a_run_cut_short_only_shakes_are_left_that_everybody_played():
    results = played(7)
    del results.runs[WEEK][HALF]["6"]
    whole_rounds(results, play.expected())
    assert results.count(WEEK, AUTO) == results.count(WEEK, HALF) == 5
    del results.runs[WEEK][EASY]
    whole_rounds(results, play.expected())
    assert WEEK not in results.runs


def test_a_ratio_is_taken_over_the_shakes_that_both_have_played():
    results = played(2)
    results.keep(WEEK, EASY, 1, ONE | {"mean_wait_s": 4000.0})
    results.keep(WEEK, EASY, 2, ONE | {"mean_wait_s": 9e9})
    del results.runs[WEEK][AUTO]["2"]
    assert results.ratio(WEEK, AUTO, EASY, "mean_wait_s") == 0.5


def test_a_goal_is_missed_by_one_bad_shake_of_the_fair_turn_and_says_so():
    results = played(3)
    assert all(one.reached for one in goals.goals(results) if one.place == WEEK)
    results.keep(WEEK, AUTO, 2, ONE | {"fluid": 5.1})
    missed = [one for one in goals.goals(results) if not one.reached]
    assert [one.value for one in missed] == ["5.1 (mean 3)"]
    assert "5.1 (mean 3)" in document.worse(results)


def test_every_number_of_the_document_is_in_a_block_that_can_be_made(tmp_path, monkeypatch):
    (tmp_path / "img").mkdir()
    copied = tmp_path / "SCHEDULING.md"
    copied.write_text(document.DOC.read_text())
    monkeypatch.setattr(document, "DOCS", tmp_path)
    monkeypatch.setattr(document, "DOC", copied)
    results = played(3)
    before = copy.deepcopy(results)
    written = document.record(results)
    assert results == before
    assert "scheduling-mean-wait.svg" in {path.name for path in written}
    text = copied.read_text()
    assert tables.table(tables.WAITS, tables.waits(results, WEEK)) in text
    assert all(variant.name in text for variant in TABLE)
    document.record(results)
    assert copied.read_text() == text
