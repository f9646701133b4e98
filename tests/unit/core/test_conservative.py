"""Conservative backfill: what everybody is promised holds, CPUs and memory included, and fillers make way for it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from rota.core.conservative import Profile
from rota.core.policy import Backfill, Ordering, Policy
from rota.core.presets import named
from rota.core.resources import Request
from tests.unit.core.kit import HIGH, Lab, node

CONSERVATIVE = named("conservative")
FILLER: dict[str, Any] = {"preemptible": True, "filler": True, "grace_s": 0.0, "time_limit_s": 600.0, "takes": 600.0}


def wants(gpus: int, seconds: float, **more: Any) -> dict[str, Any]:
    """A run that says truly how long it takes."""
    return {"request": Request(gpus, **more), "takes": seconds, "time_limit_s": seconds}


@pytest.mark.parametrize(
    ("all_of_it", "half", "quarter"),
    [({"cpus": 16}, {"cpus": 8}, {"cpus": 4}), ({"memory_gb": 64.0}, {"memory_gb": 32.0}, {"memory_gb": 16.0})],
    ids=["cpus", "memory"],
)
def test_nobody_passes_with_cpus_or_memory_that_are_promised(all_of_it, half, quarter):
    lab = Lab(node("a", cpus=16, memory_gb=64.0), policy=CONSERVATIVE)
    lab.submit(**wants(4, 100, **half))
    lab.step()
    first = lab.submit(**wants(4, 100, **all_of_it))
    too_long = lab.submit(**wants(1, 101, **quarter))
    without = lab.submit(**wants(1, 1000))
    in_time = lab.submit(**wants(1, 100, **quarter))
    plan = lab.step()
    assert plan.reserve is not None
    assert (plan.reserve.run_id, plan.reserve.at) == (first, 100.0)
    assert [start.run_id for start in plan.starts] == [without, in_time]
    lab.until(1000)
    assert (lab.started[first], lab.started[too_long]) == ([100.0], [200.0])


@pytest.mark.parametrize("seed", range(12))
def test_whoever_was_promised_a_moment_starts_by_then(seed):
    chance = random.Random(seed)
    lab = Lab(node("a", cpus=16), node("b", cpus=8, memory_gb=64.0), policy=CONSERVATIVE, checked=False)
    promised: dict[str, float] = {}
    for _ in range(40):
        cpus, memory_gb = chance.choice([0, 1, 4, 8]), chance.choice([0.0, 16.0, 48.0])
        seconds = float(chance.randrange(1, 3000))
        lab.submit(**wants(chance.choice([0, 1, 1, 2, 4, 8]), seconds, cpus=cpus, memory_gb=memory_gb))
        lab.until(lab.now + chance.randrange(1, 400))
        reserve = lab.plan().reserve
        if reserve is not None:
            assert reserve.at <= promised.setdefault(reserve.run_id, reserve.at)
    lab.until(1e6)
    assert promised
    assert all(lab.started[run_id][0] <= at for run_id, at in promised.items())


@pytest.mark.parametrize("seed", range(8))
def test_a_pass_that_ends_when_nobody_can_begin_any_more_leaves_nobody_out(seed, monkeypatch):
    chance = random.Random(seed)
    lab = Lab(node("a"), node("b", gpus=4), policy=CONSERVATIVE, checked=False)
    early = 0
    for _ in range(60):
        takes = float(chance.randrange(1, 3000))
        limit = takes * chance.choice([1, 2, 4])
        lab.submit(chance.choice([1, 1, 2, 4, 8, 12]), takes=takes, time_limit_s=limit)
        plan = lab.plan()
        with monkeypatch.context() as patched:
            patched.setattr(Profile, "over", lambda _: False)
            whole = lab.plan()
        assert (plan.starts, plan.reserve) == (whole.starts, whole.reserve)
        early += plan.examined < whole.examined
        lab.until(lab.now + chance.randrange(1, 300))
    assert early


def test_a_filler_uses_what_others_are_booked_for_and_makes_way_when_their_time_comes():
    lab = Lab(node("a"), policy=CONSERVATIVE)
    lab.submit(**wants(4, 100))
    lab.step()
    booked = lab.submit(**wants(8, 100))
    filler = lab.submit(4, **FILLER)
    assert [start.run_id for start in lab.step().starts] == [filler]
    lab.until(100)
    assert lab.started[booked] == [100.0]
    lab.until(1000)
    assert lab.started[filler] == [0.0, 200.0]


def test_a_filler_makes_way_for_one_that_somebody_newer_has_passed_and_no_other_filler_does():
    lab = Lab(node("a", kind="H100"), node("b", kind="A100"), policy=CONSERVATIVE)
    lab.submit(**wants(4, 100, gpu_type="h100"))
    lab.step()
    booked = lab.submit(**wants(8, 100, gpu_type="h100"))
    passing = lab.submit(**wants(2, 50, gpu_type="h100"))
    in_the_way = lab.submit(request=Request(2, gpu_type="h100"), **FILLER)
    elsewhere = lab.submit(request=Request(8, gpu_type="a100"), **FILLER)
    assert {start.run_id for start in lab.step().starts} == {passing, in_the_way, elsewhere}
    lab.until(100)
    assert lab.started[booked] == [100.0]
    assert lab.run(in_the_way).attempt is None
    assert lab.started[elsewhere] == [0.0]
    assert lab.run(elsewhere).attempt is not None


def test_no_filler_is_stopped_while_somebody_else_is_late():
    """The second GPU of the booked run is still held by one that takes longer than it said."""
    lab = Lab(node("a", gpus=2), policy=CONSERVATIVE)
    lab.submit(1, takes=300.0, time_limit_s=100.0)
    lab.step()
    booked = lab.submit(**wants(2, 100))
    filler = lab.submit(1, **FILLER)
    lab.until(200)
    assert lab.run(filler).attempt is not None
    lab.until(300)
    assert lab.started[booked] == [300.0]


def test_room_that_is_being_made_for_one_is_booked_to_the_others():
    """One that is more urgent makes room and will have the node for 100 s. Whoever comes after it waits for that, and
    nobody passes it who would not be done by then."""
    policy = replace(Policy(), ordering=Ordering.PRIORITY, backfill=Backfill.CONSERVATIVE, preemption=True)
    lab = Lab(node("a"), policy=policy)
    lab.submit(6, takes=1e4, time_limit_s=1e4, preemptible=True, grace_s=30.0)
    lab.step()
    lab.now += 1
    urgent = lab.submit(**wants(6, 100), priority=HIGH)
    second = lab.submit(**wants(8, 100), priority=HIGH)
    third = lab.submit(**wants(2, 500))
    plan = lab.step()
    assert [victim.for_run for victim in plan.preempts] == [urgent]
    assert third not in [start.run_id for start in plan.starts]
    assert plan.reserve is not None
    assert (plan.reserve.run_id, plan.reserve.at) == (second, 101.0)
