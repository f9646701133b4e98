"""Limit, grace and the moment a run is gone; and runs that should be gone and are not."""

from __future__ import annotations

from typing import Any

import pytest

from rota.core import codec, grace
from rota.core import events as e
from rota.core.explain import explain
from rota.core.forecast import at_most, believed, forecast
from rota.core.overdue import DEAD_WITHIN_S, overdue
from rota.core.policy import Backfill, Ordering, Policy
from rota.core.reservation import Reservation
from rota.core.reserving import choose
from rota.core.resources import Request, Slice
from rota.core.run import Cause
from tests.unit.core.kit import Lab, node, spec, where

DAY = 86400.0
FCFS = Policy(ordering=Ordering.FCFS)


def lab(gpus: int = 2, **policy: Any) -> Lab:
    return Lab(node("a", gpus), policy=Policy(**{"ordering": Ordering.FCFS, **policy}))


def reservation(lab: Lab, start: float, length_s: float = 600.0, gpus: int = 0b11, user: str = "bob") -> Reservation:
    made = Reservation("res", user, "", start, start + length_s, (Slice("a", gpus),), lab.now)
    lab.tell(e.ReservationMade(at=lab.now, reservation=made))
    return made


# -- the cap ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("said", "most_s"),
    [
        ({}, 300.0),
        ({"preemptible": True}, 300.0),
        ({"checkpoint_signal": 12}, 600.0),
        ({"preemptible": True, "saves": True}, 600.0),
        ({"checkpoint_signal": 9}, 300.0),
    ],
)
def test_the_cap_is_longer_for_runs_that_save(said, most_s):
    long = spec(grace_s=DAY, **said)
    assert grace.cap_s(Policy(), long) == grace.own_s(Policy(), long) == grace.for_others_s(Policy(), long) == most_s
    granted = spec(grace_s=DAY, long_grace=True, **said)
    assert (grace.own_s(Policy(), granted), grace.for_others_s(Policy(), granted)) == (DAY, most_s)
    assert grace.own_s(Policy(max_grace_s=700.0), spec(grace_s=DAY, **said)) == 700.0, "to save takes no less"


def test_a_policy_stored_before_there_was_a_cap_has_the_usual_one():
    old = codec.decode(Policy, {"ordering": "fcfs", "preemption": True, "corrects": True, "margin": 2.0})
    assert (old.max_grace_s, old.max_checkpoint_grace_s) == (300.0, 600.0)


# -- planning ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("grace_s", "starts"), [(10.0, True), (40.0, True), (41.0, False), (DAY, False)])
def test_limit_and_grace_must_be_over_before_a_reservation(grace_s, starts):
    bench = lab()
    reservation(bench, 100.0)
    run_id = bench.submit(1, time_limit_s=59.0, grace_s=grace_s)
    bench.step()
    assert (bench.state.runs[run_id].attempt is not None) == starts


def test_without_a_limit_only_the_expectation_counts():
    bench = lab()
    reservation(bench, 100.0)
    run_id = bench.submit(1, grace_s=300.0, expected=99.0)
    bench.step()
    assert bench.state.runs[run_id].attempt is not None


@pytest.mark.parametrize("backfill", [Backfill.EASY, Backfill.CONSERVATIVE])
@pytest.mark.parametrize(("grace_s", "passes"), [(10.0, True), (60.0, False)])
def test_only_what_is_gone_in_time_passes_the_first_that_waits(backfill, grace_s, passes):
    """The usual grace of 10 s is no more than a start takes, and does not keep limits from fitting back to back."""
    bench = lab(2, backfill=backfill)
    bench.submit(1, expected=100.0)
    bench.step()
    bench.submit(2, expected=100.0)
    short = bench.submit(1, time_limit_s=100.0, grace_s=grace_s)
    bench.step()
    assert (bench.state.runs[short].attempt is not None) == passes


def test_the_hint_leaves_room_for_the_grace():
    bench = lab()
    reservation(bench, 3600.0)
    run_id = bench.submit(1, time_limit_s=7200.0, grace_s=300.0)
    bench.step()
    hint = explain(bench.state, bench.now, run_id).hint
    assert hint.startswith("with a time limit of 54 min"), hint


# -- runs that should be gone -----------------------------------------------------------------------------------------
def test_past_its_limit_a_run_is_overdue_until_it_is_killed_and_then_without_a_bound():
    bench = lab()
    run_id = bench.submit(2, time_limit_s=30.0, grace_s=200.0, takes=DAY)
    bench.step()
    run, policy = bench.state.runs[run_id], bench.state.policy
    assert overdue(policy, run, 29.0) is None
    late = overdue(policy, run, 70.0)
    assert late is not None and (late.run_id, late.user, late.since, late.until) == (run_id, "ann", 30.0, 230.0)
    assert f"{run_id} of ann is past its time limit since 40 s; it is killed in 3 min at the latest" in late.text
    assert f"rota cancel --now {run_id}" in late.text
    undead = overdue(policy, run, 231.0 + DEAD_WITHIN_S)
    assert undead is not None and (undead.since, undead.until) == (230.0, None)
    assert "was due to be killed 6 s ago and has not died" in undead.text
    assert "was sent" not in undead.text, "its supervisor may be frozen, or the machine was suspended"


def test_who_waits_for_an_overdue_run_is_told_which_and_until_when():
    bench = lab()
    holder = bench.submit(2, time_limit_s=30.0, grace_s=200.0, takes=DAY)
    bench.step()
    waiting = bench.submit(1, user="bob")
    bench.now = 70.0
    bench.step()
    (reason,) = [one for one in explain(bench.state, 70.0, waiting).reasons if one.code == "overdue"]
    assert (reason.runs, reason.until) == ((holder,), 230.0)
    for lasts in (believed, at_most):
        at = forecast(bench.state, 70.0, [waiting], lasts=lasts)[waiting]
        assert 70.0 <= at <= 230.0, "no later than it is killed"
    assert forecast(bench.state, 70.0, [waiting], lasts=at_most)[waiting] == 230.0


def test_a_stopping_run_is_named_to_others_and_a_victim_to_them_that_it_is_stopped_for():
    bench = lab()
    holder = bench.submit(2, preemptible=True, grace_s=60.0, takes=DAY)
    bench.step()
    mine, other = bench.submit(1, user="bob"), bench.submit(1, user="cid")
    bench.stop(holder, Cause.PREEMPTED, for_run=mine)
    codes = {one.code for one in explain(bench.state, bench.now, mine).reasons}
    assert "stopping" in codes and "overdue" not in codes
    (reason,) = [one for one in explain(bench.state, bench.now, other).reasons if one.code == "overdue"]
    assert "is being preempted for another run" in reason.text
    assert mine not in reason.text, "a third person's run may not be this one's to see"
    bench.now = 60.0 + DEAD_WITHIN_S + 1.0
    assert "overdue" in {one.code for one in explain(bench.state, bench.now, mine).reasons}, "it does not die"


def test_in_a_reservation_every_run_of_others_is_overdue():
    bench = lab()
    holder = bench.submit(2, expected=50.0, takes=DAY)
    bench.step()
    made = reservation(bench, 100.0)
    mine = bench.submit(1, reservation="res", user="bob")
    bench.now = 160.0
    bench.step()
    late = overdue(bench.state.policy, bench.state.runs[holder], 160.0, made)
    assert late is not None and (late.since, late.until) == (100.0, None)
    assert "1 min" in late.text or "60 s" in late.text
    assert "it has no time limit" in late.text
    (reason,) = [one for one in explain(bench.state, 160.0, mine).reasons if one.code == "overdue"]
    assert reason.runs == (holder,)


def test_a_reservation_is_not_laid_onto_gpus_that_an_overdue_run_may_still_hold():
    bench = Lab(node("a", 1), node("b", 1), policy=FCFS)
    late = bench.submit(1, time_limit_s=30.0, grace_s=300.0, takes=DAY)
    fine = bench.submit(1, time_limit_s=90.0, expected=90.0, takes=DAY)
    starts = {start.run_id: where(start.placement) for start in bench.step().starts}
    assert starts == {late: {"a": [0]}, fine: {"b": [0]}}
    bench.now = 60.0
    assert where(choose(bench.state, Request(1), 120.0, 720.0, 60.0)) == {"b": [0]}
