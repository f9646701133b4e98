"""Long runs that nobody can stop leave a GPU to short ones: who stands back, for how long, and who need not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rota.core import events as e
from rota.core.explain import explain
from rota.core.policy import HOUR_S, Backfill, Limits, Policy
from rota.core.presets import named
from tests.unit.core.kit import HIGH, LOW, Lab, node, two_by_eight

LONG, SHORT = 24 * HOUR_S, HOUR_S
SAVES: dict[str, Any] = {"preemptible": True, "saves": True, "grace_s": 0.0}


def crowded(policy: Policy | None = None, **more) -> Lab:
    """Two nodes of eight, and sixteen people who each want a GPU for a day."""
    lab = Lab(*two_by_eight(), policy=policy or named("auto"))
    for _ in range(16):
        lab.submit(takes=LONG, **more)
    lab.step()
    return lab


def running(lab: Lab) -> int:
    return sum(run.attempt is not None for run in lab.state.runs.values())


def test_the_last_gpu_is_left_to_a_short_run():
    lab = crowded()
    assert running(lab) == 15
    short = lab.submit(takes=SHORT)
    assert [start.run_id for start in lab.plan().starts] == [short]


def test_whoever_stands_back_is_told_why_and_until_when():
    lab = crowded()
    waiting = next(run for run in lab.state.runs.values() if run.attempt is None)
    told = explain(lab.state, lab.now, waiting.id)
    assert [reason.code for reason in told.reasons] == ["express"]
    assert told.reasons[0].until == pytest.approx(3 * LONG, rel=0.4)
    assert "leaves the last GPU to short runs" in told.reasons[0].text
    assert told.hint == "with a time limit of 4 h it would start now"


def test_the_courtesy_has_an_end_and_the_pass_knows_when():
    lab = crowded()
    looks = 0
    while not (plan := lab.plan()).starts:  # nobody has ended yet: they all overrun
        assert plan.look_again_at is not None and plan.look_again_at > lab.now
        lab.now = plan.look_again_at
        looks += 1
    assert lab.now == pytest.approx(3 * LONG, rel=0.4), "about three times what it declared"
    assert looks < 20, "no busier than that"
    lab.step()
    assert running(lab) == 16


def test_nobody_stands_back_for_more_than_a_week():
    lab = crowded(time_limit_s=90 * 24 * HOUR_S)
    assert lab.plan().look_again_at == 7 * 24 * HOUR_S


@pytest.mark.parametrize("more", [SAVES, {"preemptible": True, "priority": LOW}])
def test_who_can_be_stopped_need_not_stand_back(more):
    assert running(crowded(**more)) == 16


def test_nor_need_others_while_somebody_can_be_stopped():
    lab = Lab(*two_by_eight(), policy=named("auto"))
    lab.submit(takes=LONG, **SAVES)
    for _ in range(15):
        lab.submit(takes=LONG)
    lab.step()
    assert running(lab) == 16
    lab.now += HOUR_S
    short = lab.submit(takes=SHORT)
    assert [victim.for_run for victim in lab.plan().preempts] == [short], "and a short run gets its GPU"


@pytest.mark.parametrize(
    "policy", [replace(named("auto"), express=0.0), named("easy"), named("sjf"), named("conservative")]
)
def test_other_policies_use_the_last_gpu_and_so_does_auto_if_told(policy):
    assert running(crowded(policy)) == 16


def test_short_runs_and_urgent_ones_use_it():
    assert running(crowded(time_limit_s=4 * HOUR_S)) == 16
    assert running(crowded(priority=HIGH)) == 16


def test_a_small_cluster_is_used_to_the_last():
    lab = Lab(node("a"), policy=named("auto"))
    for _ in range(8):
        lab.submit(takes=LONG)
    lab.step()
    assert running(lab) == 8


def test_the_reason_stays_while_short_runs_use_the_gpu():
    lab = crowded()
    waiting = next(run.id for run in lab.state.runs.values() if run.attempt is None)
    lab.submit(takes=SHORT)
    lab.step()
    told = explain(lab.state, lab.now, waiting)
    assert [reason.code for reason in told.reasons] == ["resources", "express"]
    reserved = lab.plan().reserve
    assert reserved is not None
    assert told.reasons[0].until == reserved.at, "and is told the time that the pass means"


def test_gangs_do_not_stand_back_and_while_one_waits_nobody_does():
    """A GPU kept free would spread long runs over the nodes that the gang needs whole."""
    lab = Lab(*two_by_eight(), policy=named("auto"))
    lab.submit(8, takes=LONG)
    lab.submit(8, takes=LONG)
    lab.step()
    assert running(lab) == 2, "eight GPUs are not left idle for the sake of one"
    lab = crowded()
    lab.submit(8, takes=LONG)
    lab.step()
    assert running(lab) == 16


@pytest.mark.parametrize("more", [{"filler": True, "preemptible": True}, {"reservation": "r"}])
def test_what_is_wide_but_waits_for_no_node_of_its_own_is_no_gang(more):
    lab = crowded()
    lab.submit(8, takes=LONG, **more)
    lab.step()
    assert running(lab) == 15


@pytest.mark.parametrize("kept_by", ["cap", "limit"])
def test_a_gang_that_may_not_start_changes_nothing(kept_by):
    """Else who never wants it to start has one GPU more than others."""
    lab = crowded(named("auto") if kept_by == "cap" else replace(named("auto"), user_limits={"bob": Limits(gpus=7)}))
    if kept_by == "cap":
        lab.tell(e.GroupCapped(at=lab.now, group="s", limit=1))
        lab.submit(0, group="s", takes=LONG, user="bob")
        lab.step()
    before = running(lab)
    lab.submit(8, group="s", takes=LONG, user="bob")
    lab.step()
    assert running(lab) == before == (16 if kept_by == "cap" else 15), "one of these needs no GPU"
    if kept_by == "cap":
        lab.tell(e.GroupCapped(at=lab.now, group="s", limit=2))
        lab.step()
        assert running(lab) == before + 1, "now a gang waits for room"


def test_nor_does_anybody_while_one_runs():
    lab = Lab(*two_by_eight(), policy=named("auto"))
    lab.submit(8, takes=HOUR_S)
    for _ in range(8):
        lab.submit(takes=LONG)
    lab.step()
    assert running(lab) == 9


def test_fillers_make_way_for_a_long_run():
    lab = Lab(*two_by_eight(), policy=named("auto"))
    for _ in range(16):
        lab.submit(takes=HOUR_S, filler=True, preemptible=True, grace_s=0.0)
    lab.step()
    assert running(lab) == 16
    lab.now += 60
    long = lab.submit(takes=LONG)
    assert [victim.for_run for victim in lab.plan().preempts] == [long]


def test_what_is_out_of_service_is_not_counted_on():
    lab = Lab(*two_by_eight(), policy=named("auto"))
    lab.tell(e.NodeDrained(at=0.0, node_id="b"))
    for _ in range(8):
        lab.submit(takes=LONG)
    lab.step()
    assert running(lab) == 8


@pytest.mark.parametrize("backfill", [Backfill.NONE, Backfill.SKIP, Backfill.CONSERVATIVE])
def test_it_needs_a_reservation_so_other_ways_to_backfill_do_without(backfill):
    assert running(crowded(replace(named("auto"), backfill=backfill))) == 16


def test_a_cluster_of_single_gpus_has_one_too():
    lab = Lab(*(node(f"n{k}", 1) for k in range(16)), policy=named("auto"))
    for _ in range(16):
        lab.submit(takes=LONG)
    lab.step()
    assert running(lab) == 15


def test_what_could_never_leave_a_gpu_does_not_stand_back():
    lab = Lab(node("a", 4), *(node(f"n{k}", 1) for k in range(12)), policy=replace(named("auto"), express=3.9))
    lab.submit(3, takes=LONG)
    lab.step()
    assert running(lab) == 1
