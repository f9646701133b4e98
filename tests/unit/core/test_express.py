"""Long runs that nobody can stop leave a GPU to short ones: who stands back, for how long, and who need not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.core.explain import explain
from rota.core.policy import HOUR_S, Policy
from rota.core.presets import named
from tests.unit.core.kit import HIGH, LOW, Lab, node, two_by_eight

LONG, SHORT = 24 * HOUR_S, HOUR_S
SAVES = {"preemptible": True, "saves": True, "grace_s": 0.0}


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
    assert [(reason.code, reason.until) for reason in told.reasons] == [("express", 3 * LONG)]
    assert "leaves 1 GPU to runs of at most 4 h" in told.reasons[0].text
    assert told.hint == "with a time limit of 4 h it would start now"


def test_the_courtesy_has_an_end_and_the_pass_knows_when():
    lab = crowded()
    plan = lab.plan()
    assert plan.look_again_at == 3 * LONG
    lab.now = plan.look_again_at - 1  # nobody has ended yet: they all overrun
    assert lab.plan().starts == ()
    lab.now = plan.look_again_at
    lab.step()
    assert running(lab) == 16


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


def test_while_a_gang_waits_nobody_stands_back_but_that_gang():
    """A GPU kept free would spread long runs over the nodes that the gang needs whole."""
    lab = Lab(*two_by_eight(), policy=named("auto"))
    first = lab.submit(8, takes=LONG)
    lab.step()
    gang = lab.submit(8, takes=LONG)
    assert lab.plan().starts == (), "both nodes would be taken for a day"
    assert explain(lab.state, lab.now, gang).reasons[0].code == "express"
    lab.submit(8, takes=LONG)
    assert len(lab.plan().starts) == 1, "gangs are the daily work here"
    assert lab.held_gpus(first)


def test_what_could_never_leave_a_gpu_does_not_stand_back():
    lab = Lab(*two_by_eight(), policy=named("auto"))
    lab.submit(16, takes=LONG)
    lab.step()
    assert running(lab) == 1
