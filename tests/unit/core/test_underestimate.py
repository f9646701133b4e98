"""A run that outlives its estimate, and the backlog of one person, keep nobody else off GPUs that are free."""

from __future__ import annotations

from typing import Any

import pytest

from rota.core import events as e
from rota.core.explain import explain
from rota.core.grace import PROMPT_S
from rota.core.policy import Backfill, Ordering, Policy
from rota.core.resources import Request
from rota.core.run import Cause, Exit
from rota.core.underestimate import LEAST_S
from tests.unit.core.kit import Lab, two_by_eight

EASY = Policy(ordering=Ordering.FCFS, backfill=Backfill.EASY)
POLICIES = [EASY, Policy(), Policy(ordering=Ordering.FCFS, backfill=Backfill.CONSERVATIVE)]


def with_one_that_is_late(policy: Policy, **more: Any) -> tuple[Lab, str, str]:
    """One GPU is held by a run that said ten seconds; a run of all sixteen waits for it."""
    lab = Lab(*two_by_eight(), policy=policy)
    late = lab.submit(1, user="mal", takes=1e9, expected=10.0, **more)
    lab.step()
    wide = lab.submit(16, user="mal", takes=1.0, time_limit_s=1.0)
    lab.until(11.0)
    return lab, late, wide


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.ordering}-{policy.backfill}")
def test_who_waits_behind_a_run_that_is_late_waits_no_longer_than_it_is_late(policy: Policy) -> None:
    lab, _, _ = with_one_that_is_late(policy)
    minute, hour = lab.submit(1, user="bob", takes=60.0), lab.submit(1, user="ann", takes=3600.0)
    lab.follow(10_000.0)
    assert lab.first_start(minute) == pytest.approx(10.0 + PROMPT_S, abs=3.0)
    started = lab.first_start(hour)
    assert started is not None and started <= 2 * 3600.0


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.ordering}-{policy.backfill}")
def test_the_run_that_waits_for_it_still_starts_when_it_ends(policy: Policy) -> None:
    lab, late, wide = with_one_that_is_late(policy)
    short = [lab.submit(1, user="bob", takes=50.0) for _ in range(40)]
    lab.follow(300.0)
    lab.end(late)
    ended = lab.now
    lab.follow(ended + 2 * LEAST_S + (ended - 10.0))
    started = lab.first_start(wide)
    assert started is not None and started - ended <= max(LEAST_S, ended - 10.0), "no later than what it was late by"
    assert any(lab.first_start(one) is not None for one in short)


def test_a_time_limit_bounds_how_long_it_may_be_late() -> None:
    lab, _, wide = with_one_that_is_late(EASY, time_limit_s=500.0)
    for now, at in ((450.0, 500.0), (505.0, 510.0)):  # a prompt end is planned for, and then the end of its grace
        lab.now = now
        reserve = lab.plan().reserve
        assert reserve is not None and reserve.run_id == wide
        assert reserve.at == pytest.approx(at, abs=1.0)


def test_runs_that_are_late_and_end_in_turn_are_not_passed_by_others_of_the_same_limit() -> None:
    """Each says that it takes no time, is late, and ends once the next has passed: the head must not wait for all."""
    lab = Lab(*two_by_eight(), policy=EASY)
    said: dict[str, Any] = {"user": "mal", "takes": 1e9, "expected": 0.001, "time_limit_s": 50.5}
    before = [lab.submit(8, **said)]
    lab.step()
    head = lab.submit(16, user="bob", takes=100.0, time_limit_s=100.0, priority=4)
    passed = 0
    while lab.first_start(head) is None and lab.now < 300.0:
        said["time_limit_s"] -= 0.5  # as much as a launch takes
        waiting = lab.submit(8, **said)
        for _ in range(24):
            lab.until(lab.now + 0.5)
            if lab.first_start(waiting) is not None:
                passed += 1
                lab.end(before.pop())
                break
        before.append(waiting)
        if lab.first_start(waiting) is None:
            break
    assert passed <= 1


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.ordering}-{policy.backfill}")
def test_a_late_run_that_was_asked_to_end_may_use_its_grace(policy: Policy) -> None:
    """It ignores its signal, so it goes on until it is killed: whoever is done by then need not wait for that."""
    lab, late, wide = with_one_that_is_late(policy, grace_s=600.0)
    lab.stop(late, Cause.CANCELLED)
    minute = lab.submit(1, user="bob", takes=60.0)
    lab.follow(100.0)
    assert lab.first_start(minute) is not None
    assert lab.first_start(wide) is None
    lab.follow(1000.0)
    assert lab.first_start(wide) == pytest.approx(611.0, abs=1.0), "as soon as it was killed"


def test_an_end_that_is_told_a_little_late_lets_nobody_pass() -> None:
    lab, late, wide = with_one_that_is_late(EASY)
    minute = lab.submit(1, user="bob", takes=60.0)
    lab.now = 10.0 + PROMPT_S
    lab.step()
    assert lab.first_start(minute) is None
    lab.end(late)
    lab.step()
    assert lab.first_start(wide) == lab.now


def shapes(lab: Lab, count: int) -> None:
    for number in range(count):
        request = Request(16, memory_gb=1.0 + number / 1000)
        lab.submit(user="mal", takes=1.0, time_limit_s=1.0, request=request)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.ordering}-{policy.backfill}")
def test_the_backlog_of_one_person_hides_nobody(policy: Policy) -> None:
    lab = Lab(*two_by_eight(), policy=policy, checked=False)
    lab.submit(1, user="mal", takes=1e6)
    lab.step()
    shapes(lab, policy.backfill_depth + 100)
    ann, bob = lab.submit(1, user="ann", takes=60.0), lab.submit(1, user="bob", takes=3600.0)
    lab.step()
    assert lab.first_start(ann) == lab.first_start(bob) == 0.0


def test_a_depth_of_zero_still_lets_nobody_pass() -> None:
    lab = Lab(*two_by_eight(), policy=Policy(ordering=Ordering.FCFS, backfill_depth=0))
    lab.submit(1, takes=100.0)
    lab.step()
    lab.submit(16, takes=1.0)
    ann = lab.submit(1, user="ann", takes=1.0)
    lab.step()
    assert lab.first_start(ann) is None


def test_one_person_does_not_use_up_the_tries_to_preempt() -> None:
    lab = Lab(*two_by_eight(), policy=Policy(), checked=False)
    for _ in range(16):
        lab.submit(1, user="eve", takes=1e6, preemptible=True, priority=1)
    lab.step()
    lab.now = 1000.0
    shapes_that_fit_nowhere = [
        Request(1, cpus=64 - number % 60, memory_gb=500.0 + number / 100) for number in range(100)
    ]
    for request in shapes_that_fit_nowhere:
        lab.submit(user="mal", takes=1.0, request=request, priority=4)
    ann = lab.submit(1, user="ann", takes=60.0, priority=4)
    plan = lab.plan()
    assert ann in {victim.for_run for victim in plan.preempts}


@pytest.mark.parametrize("lowered_to", [1, 3])
def test_one_that_was_stopped_stands_not_behind_a_run_whose_priority_was_lowered(lowered_to: int) -> None:
    lab = Lab(*two_by_eight(), policy=Policy())
    victims = [lab.submit(8, user="ann", takes=1e5, preemptible=True, saves=True, priority=3) for _ in range(2)]
    lab.step()
    lab.now = 500.0
    first = lab.submit(8, user="mal", takes=1e6, priority=4)
    plan = lab.step()
    stopped = plan.preempts[0].run_id
    assert stopped in victims and plan.preempts[0].for_run == first
    lab.tell(e.RunReprioritised(at=lab.now, run_id=first, priority=lowered_to))
    other = lab.submit(8, user="bob", takes=7200.0, priority=2)
    lab.now += 1.0
    lab.end(stopped, Exit(Cause.PREEMPTED))
    lab.step()
    assert lab.run(stopped).attempt is not None, "before the runs of a lower priority"
    assert lab.first_start(other) is None and lab.first_start(first) is None


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.ordering}-{policy.backfill}")
def test_a_run_past_limit_and_grace_does_not_make_one_pass_follow_another_at_once(policy: Policy) -> None:
    lab, late, _ = with_one_that_is_late(policy, time_limit_s=15.0, grace_s=10.0)
    lab.now = 60.0
    assert lab.run(late).attempt is not None
    again = lab.step().look_again_at
    assert again is None or again > lab.now


URGENT_FIRST = [
    Policy(),
    Policy(backfill=Backfill.CONSERVATIVE),
    Policy(ordering=Ordering.FAIR_SHARE),
    Policy(ordering=Ordering.PRIORITY),
]


@pytest.mark.parametrize("policy", URGENT_FIRST, ids=lambda policy: f"{policy.ordering}-{policy.backfill}")
@pytest.mark.parametrize(("gpus", "priority"), [(16, 2), (2, 1)], ids=["wide", "two"])
def test_a_burst_of_wrong_expectations_does_not_pass_one_after_another(
    policy: Policy, gpus: int, priority: int
) -> None:
    lab = Lab(*two_by_eight(), policy=policy, checked=False)
    for number in range(120):
        took = 3600.0 - number * 211 % 1800
        lab.submit(1, user="mal", takes=took, expected=1.0, priority=priority)
    lab.follow(600.0)
    head = lab.submit(gpus, user="ann", takes=3600.0, time_limit_s=3600.0, priority=4)
    lab.follow(4 * 3600.0)
    started = lab.first_start(head)
    assert started is not None and started <= 2 * 3600.0, "the burst lasts for more than five hours"


@pytest.mark.parametrize("backfill", [Backfill.EASY, Backfill.CONSERVATIVE])
@pytest.mark.parametrize(("gpus", "passes"), [(16, False), (15, True)], ids=["all", "one beside"])
def test_who_passed_and_is_late_passes_only_with_a_limit_or_beside_the_reservation(
    backfill: Backfill, gpus: int, passes: bool
) -> None:
    lab = Lab(*two_by_eight(), policy=Policy(ordering=Ordering.PRIORITY, backfill=backfill))
    lab.submit(11, user="ann", takes=7200.0, time_limit_s=7200.0)
    lab.step()
    head = lab.submit(gpus, user="ann", takes=100.0, time_limit_s=100.0, priority=3)
    lab.now = 1.0
    late = lab.submit(1, user="mal", takes=7000.0, expected=10.0)
    lab.until(60.0)
    assert lab.first_start(late) == 1.0
    said = lab.submit(1, user="mal", takes=50.0, expected=50.0)
    without_gpu = lab.submit(0, user="mal", takes=50.0, expected=50.0)
    limited = lab.submit(1, user="mal", takes=50.0, time_limit_s=50.0)
    other = lab.submit(1, user="bob", takes=50.0, expected=50.0)
    lab.step()
    assert (lab.first_start(said) == 60.0) is passes
    assert [lab.first_start(one) for one in (without_gpu, limited, other)] == [60.0, 60.0, 60.0]
    if not passes:
        told = explain(lab.state, lab.now, said)
        assert "reservation" in [reason.code for reason in told.reasons]
        assert "has no time limit, and another run of its owner that passed that one" in told.reasons[0].text
        assert "with a time limit of" in told.hint
    lab.follow(8000.0)
    assert lab.first_start(head) == 7200.0
    assert lab.first_start(said) == (60.0 if passes else 7001.0), "when the late one has ended"
