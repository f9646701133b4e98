"""What is free of the room that is being made for a run: who may use it meanwhile, and that this delays nobody."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from rota.core import events as e
from rota.core.policy import Ordering, Policy
from rota.core.presets import named
from tests.unit.core.kit import CRITICAL, HIGH, LOW, Lab, node

POLICIES = [named("auto"), Policy(preemption=True, ordering=Ordering.PRIORITY)]


def being_made(policy: Policy, grace_s: float = 600.0) -> tuple[Lab, str, str]:
    """One GPU of eight is held by a victim that saves for its whole grace; all eight are wanted."""
    lab = Lab(node("a"), policy=policy)
    victim = lab.submit(
        1, user="mal", takes=1e6, preemptible=True, priority=HIGH, grace_s=grace_s, checkpoint_signal=12
    )
    lab.step()
    lab.now = 1.0
    wide = lab.submit(8, user="mal", takes=5.0, time_limit_s=6.0, priority=CRITICAL)
    assert [preempt.run_id for preempt in lab.step().preempts] == [victim]
    return lab, victim, wide


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.ordering}-{policy.backfill}")
def test_a_short_run_uses_what_is_kept_while_the_victim_saves(policy: Policy) -> None:
    lab, _, wide = being_made(policy)
    short = [lab.submit(1, user="ann", takes=5.0, time_limit_s=5.0) for _ in range(3)]
    long = lab.submit(1, user="bob", takes=3000.0, time_limit_s=3600.0)
    unbounded = lab.submit(1, user="bob", takes=5.0)
    lab.follow(590.0)
    for one in short:
        assert lab.first_start(one) == pytest.approx(1.0 + 15.0, abs=1.0), "when as long has passed as it may take"
    assert lab.first_start(long) is None
    assert lab.first_start(unbounded) is None, "nothing bounds it but what it is believed to take"
    lab.follow(5000.0)
    assert lab.first_start(wide) == pytest.approx(601.0)
    assert lab.first_start(long) is not None


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.ordering}-{policy.backfill}")
def test_a_stream_of_short_runs_delays_nobody_beyond_the_last_kill(policy: Policy) -> None:
    lab, _, wide = being_made(policy, grace_s=200.0)
    for _ in range(300):
        lab.submit(1, user="ann", takes=30.0, time_limit_s=30.0, grace_s=10.0)
    lab.follow(2000.0)
    assert lab.first_start(wide) == pytest.approx(201.0)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.ordering}-{policy.backfill}")
def test_a_victim_that_leaves_early_is_waited_for_at_most_twice_as_long(policy: Policy) -> None:
    lab, victim, wide = being_made(policy)
    for _ in range(300):
        lab.submit(1, user="ann", takes=40.0, time_limit_s=40.0, grace_s=10.0)
    lab.follow(70.0)
    lab.true_s[victim] = 70.0
    lab.follow(2000.0)
    started = lab.first_start(wide)
    assert started is not None and started <= 70.0 + 60.0


def test_nobody_else_is_stopped_because_a_short_run_uses_the_room() -> None:
    lab = Lab(node("a"), node("b"), policy=named("auto"))
    cheap = lab.submit(1, user="mal", takes=1e6, preemptible=True, priority=LOW, grace_s=600.0, checkpoint_signal=12)
    rest = lab.submit(7, user="bob", takes=100.0, time_limit_s=110.0)
    other = lab.submit(8, user="vic", takes=1e6, preemptible=True, priority=HIGH)
    lab.step()
    lab.until(101.0)
    assert lab.run(rest).attempt is None
    wide = lab.submit(8, user="mal", takes=5.0, time_limit_s=6.0, priority=CRITICAL)
    assert [preempt.run_id for preempt in lab.step().preempts] == [cheap]
    short = lab.submit(1, user="ann", takes=20.0, time_limit_s=20.0)
    lab.follow(690.0)
    assert lab.first_start(short) is not None
    lab.true_s[cheap] = lab.now
    lab.follow(2000.0)
    assert lab.first_start(wide) is not None
    assert not lab.run(other).past


def test_a_victim_is_not_back_on_the_room_before_the_run_that_it_was_stopped_for() -> None:
    lab = Lab(node("a"), policy=named("auto"))
    slow = lab.submit(1, user="mal", takes=1e6, preemptible=True, priority=LOW, grace_s=600.0, checkpoint_signal=12)
    quick = lab.submit(1, user="vic", takes=1e6, preemptible=True, priority=LOW, grace_s=1.0, time_limit_s=45.0)
    lab.step()
    lab.now = 1.0
    wide = lab.submit(8, user="mal", takes=5.0, time_limit_s=6.0, priority=CRITICAL)
    assert {preempt.run_id for preempt in lab.step().preempts} == {slow, quick}
    lab.follow(590.0)
    assert lab.run(quick).attempt is None
    lab.follow(620.0)
    assert lab.first_start(wide) == pytest.approx(601.0)
    assert lab.started[quick][1] >= 601.0


@pytest.mark.parametrize("seed", [1, 27, 37, 42, 84, 94, 101, 111, 235, 401, 471, *range(200, 210)])
def test_in_a_crowd_the_run_starts_by_the_last_kill_and_stops_no_more(seed: int) -> None:
    """Short, long and unbounded runs come while its victims save for all or part of their graces."""
    rng = random.Random(seed)
    policy = POLICIES[0] if seed % 2 else POLICIES[1]
    lab = Lab(node("a"), node("b"), policy=policy, checked=False)
    for _ in range(rng.randint(1, 6)):
        wanted, priority, saves = rng.choice([1, 2, 4]), rng.choice([1, 2, 3]), rng.random() < 0.5
        more: dict[str, Any] = {"preemptible": True, "saves": saves, "checkpoint_signal": 12}
        lab.submit(wanted, user="vic", takes=1e6, priority=priority, grace_s=rng.choice([5, 60, 300, 600]), **more)
    for _ in range(rng.randint(0, 3)):
        lab.submit(rng.choice([1, 2]), user="x", takes=rng.uniform(50, 400), time_limit_s=500.0)
    lab.step()
    lab.now = 700.0
    lab.step()
    wide = lab.submit(rng.choice([4, 8, 16, 12]), user="mal", takes=5.0, time_limit_s=6.0, priority=CRITICAL)
    victims = [lab.run(preempt.run_id) for preempt in lab.plan().preempts]
    by = lab.now + max((run.spec.grace_s for run in victims), default=math.inf)
    lab.step()
    asked = len(stops_for(lab, wide))
    for run in victims:
        if rng.random() < 0.6:
            lab.true_s[run.id] = 700.0 + rng.uniform(0, run.spec.grace_s)
    for _ in range(60):
        if rng.random() < 0.7:
            length = rng.choice([2.0, 5.0, 20.0, 40.0, 50.0, 100.0, 3000.0])
            limit = length if rng.random() < 0.9 else None
            user, priority = rng.choice(["ann", "bob"]), rng.choice([1, 2, 2, 3])
            lab.submit(rng.choice([1, 1, 2, 4]), user=user, takes=length, time_limit_s=limit, priority=priority)
        lab.follow(lab.now + rng.uniform(1, 15))
    if not asked:
        return
    lab.follow(max(lab.now, by))
    started = lab.first_start(wide)
    assert started is not None and started <= by
    assert len(stops_for(lab, wide)) == asked


def stops_for(lab: Lab, run_id: str) -> list[e.Event]:
    return [event for event in lab.log if isinstance(event, e.StopRequested) and event.for_run == run_id]
