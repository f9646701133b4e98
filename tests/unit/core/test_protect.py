"""How long a run is left alone: nobody is stopped again and again by those who ask for GPUs and then leave."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from rota.core import events as e
from rota.core.explain import explain
from rota.core.overdue import overdue
from rota.core.policy import Backfill, Ordering, Policy
from rota.core.presets import named
from rota.core.reservation import Reservation
from rota.core.reserving import choose
from rota.core.resources import Request, Slice
from rota.core.run import Cause, Exit, RunState
from tests.unit.core.kit import CRITICAL, HIGH, LOW, Lab, node, where

SAVES: dict[str, Any] = {"preemptible": True, "saves": True, "grace_s": 0.0}
WHOLE = (Slice("a", 0xFF),)
FOREVER = 1e6


def lab_with(policy: Policy, **more: Any) -> tuple[Lab, str]:
    """One run on all eight GPUs, which may be stopped."""
    lab = Lab(node("a"), policy=policy)
    victim = lab.submit(8, takes=FOREVER, time_limit_s=FOREVER, **{**SAVES, **more})
    lab.step()
    assert lab.run(victim).attempt is not None
    return lab, victim


def make_way(lab: Lab) -> list[str]:
    """One pass, and whoever is asked to go is gone at once."""
    gone = [preempt.run_id for preempt in lab.step().preempts]
    for run_id in gone:
        lab.end(run_id, Exit(Cause.PREEMPTED))
    return gone


def leave(lab: Lab, run_id: str) -> None:
    lab.tell(e.RunEnded(at=lab.now, run_id=run_id, state=RunState.CANCELLED, why="changed my mind"))


def reserve(lab: Lab, name: str, start: float, length: float = 600.0) -> Reservation:
    made = Reservation(name, "mal", "", start, start + length, WHOLE, lab.now)
    lab.tell(e.ReservationMade(at=lab.now, by="mal", reservation=made))
    return made


def give_up(lab: Lab, name: str) -> None:
    lab.tell(e.ReservationEnded(at=lab.now, by="mal", reservation_id=name, why="not needed"))


def stopped_before(policy: Policy, **more: Any) -> tuple[Lab, str]:
    """The run was stopped once for an urgent one, which left, and has just started again."""
    lab, victim = lab_with(policy, **more)
    lab.now = 100.0
    first = lab.submit(8, priority=CRITICAL)
    assert make_way(lab) == [victim]
    leave(lab, first)
    lab.step()
    attempt = lab.run(victim).attempt
    assert attempt is not None and attempt.number == 2
    return lab, victim


# -- for a higher priority --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["auto", "priority", "srtf"])
@pytest.mark.parametrize("saves", [True, False])
def test_submit_and_cancel_over_and_over_does_not_stop_somebody_every_time(name: str, saves: bool) -> None:
    lab, victim = lab_with(replace(named(name), preemption=True), priority=HIGH, saves=saves)
    stops = []
    while lab.now < 1800:
        lab.now += 5.0
        urgent = lab.submit(8, user="mal", priority=CRITICAL, takes=1.0, time_limit_s=1.0)
        if make_way(lab):
            stops.append(lab.now)
        leave(lab, urgent)
        lab.step()
        assert lab.run(victim).attempt is not None, "it is back at once"
    gaps = [after - before for before, after in pairwise(stops)]
    assert stops[0] == 5.0, "an urgent run does not wait for one that was never stopped"
    assert gaps[0] == 180.0 and set(gaps[1:]) == {300.0}, "then it is left alone, longer after every stop"


POLICIES = [(order, backfill) for order in Ordering for backfill in Backfill]


@pytest.mark.parametrize(("ordering", "backfill"), POLICIES, ids=str)
@pytest.mark.parametrize("min_run_s", [60.0, 7200.0])
def test_an_urgent_run_waits_five_minutes_at_most(ordering: Ordering, backfill: Backfill, min_run_s: float) -> None:
    """Also where lower ones that were stopped before come back meanwhile: what is free is kept for it."""
    policy = Policy(ordering=ordering, backfill=backfill, preemption=True, min_run_s=min_run_s)
    lab = Lab(node("a"), policy=policy)
    low: dict[str, Any] = {
        "takes": FOREVER,
        "time_limit_s": FOREVER,
        "priority": LOW,
        "user": "vic",
        "preemptible": True,
    }
    four, other = lab.submit(4, **low), lab.submit(4, **low)
    lab.step()
    lab.now = 10.0
    first = lab.submit(8, priority=CRITICAL)
    assert set(make_way(lab)) == {four, other}
    leave(lab, first)
    lab.tell(e.RunHeld(at=lab.now, run_id=other, why="for a moment"))
    lab.step()
    lab.now = 20.0
    urgent = lab.submit(8, takes=50.0, time_limit_s=50.0, priority=CRITICAL)
    lab.tell(e.RunReleased(at=lab.now, run_id=other))
    while lab.run(urgent).attempt is None:
        plan = lab.plan()
        make_way(lab)
        if not plan.preempts and not plan.starts:
            assert plan.look_again_at is not None and plan.look_again_at > lab.now
            lab.now = plan.look_again_at
    assert lab.now <= 20.0 + 300.0
    if ordering in (Ordering.AUTO, Ordering.PRIORITY):
        assert lab.run(other).attempts_made == 1, "what was free was kept for the urgent one"
        assert lab.now == 10.0 + min(2 * min_run_s + policy.restart_cost_s, 300.0)


def test_why_an_urgent_run_waits_is_said() -> None:
    lab, victim = stopped_before(named("auto"))
    lab.now = 110.0
    urgent = lab.submit(8, user="bob", priority=CRITICAL, takes=50.0)
    assert lab.plan().preempts == ()
    (reason,) = [one for one in explain(lab.state, lab.now, urgent).reasons if one.code == "protected"]
    assert (reason.runs, reason.until) == ((victim,), 280.0)
    assert "stopped before" in reason.text and "at most 5 min" in reason.text
    lab.now = 280.0
    assert [one.run_id for one in lab.plan().preempts] == [victim]


def test_who_failed_and_was_never_stopped_is_not_left_alone_by_an_urgent_run() -> None:
    lab, victim = lab_with(named("auto"))
    lab.now = 10.0
    lab.end(victim, Exit(Cause.LOST))
    lab.now = 700.0
    lab.step()
    lab.now += 1.0
    lab.submit(8, priority=CRITICAL)
    assert make_way(lab) == [victim]


def test_one_that_passes_does_not_put_off_an_urgent_run_that_waits_for_other_work() -> None:
    """The urgent one is to start in two minutes. Who would be left alone for longer does not start before it."""
    lab = Lab(node("a"), policy=named("auto"))
    low = lab.submit(4, takes=FOREVER, time_limit_s=FOREVER, priority=LOW, **SAVES)
    lab.step()
    lab.now = 400.0
    first = lab.submit(8, priority=CRITICAL)
    assert make_way(lab) == [low]
    leave(lab, first)
    lab.tell(e.RunHeld(at=lab.now, run_id=low, why="for a moment"))
    fixed = lab.submit(4, takes=120.0, time_limit_s=120.0)
    assert [start.run_id for start in lab.step().starts] == [fixed]
    lab.tell(e.RunReleased(at=lab.now, run_id=low))
    urgent = lab.submit(8, priority=CRITICAL, takes=50.0, time_limit_s=50.0)
    plan = lab.step()
    assert plan.starts == ()
    assert plan.reserve is not None and (plan.reserve.run_id, plan.reserve.at) == (urgent, 520.0)


# -- for a reservation ------------------------------------------------------------------------------------------------
def test_reserving_now_and_giving_up_over_and_over_does_not_stop_somebody_every_time() -> None:
    lab, victim = lab_with(named("auto"), priority=CRITICAL)
    stops = []
    for number in range(360):
        lab.now += 5.0
        reserve(lab, f"r{number}", lab.now)
        if make_way(lab):
            stops.append(lab.now)
        give_up(lab, f"r{number}")
        lab.step()
        assert lab.run(victim).attempt is not None
    gaps = [after - before for before, after in pairwise(stops)]
    assert stops[0] == 60.0, "it has had its time then"
    assert gaps[0] == 180.0 and set(gaps[1:]) == {300.0}


@pytest.mark.parametrize("min_run_s", [60.0, 7200.0])
def test_one_that_was_made_five_minutes_ahead_has_its_gpus_at_its_start(min_run_s: float) -> None:
    lab, victim = lab_with(replace(named("auto"), min_run_s=min_run_s))
    lab.now = 1.0
    reserve(lab, "r1", 301.0)
    assert make_way(lab) == []
    lab.now = 301.0
    assert make_way(lab) == [victim]


def test_who_starts_although_it_is_reserved_goes_at_its_start() -> None:
    lab = Lab(node("a"), policy=named("auto"))
    reserve(lab, "r1", 20.0)
    lab.now = 10.0
    late = lab.submit(8, takes=FOREVER, time_limit_s=FOREVER, **SAVES)
    assert [start.run_id for start in lab.step().starts] == [late]
    lab.now = 20.0
    assert make_way(lab) == [late]


def test_a_filler_goes_at_once() -> None:
    lab = Lab(node("a"), policy=named("auto"))
    filler = lab.submit(8, takes=600.0, time_limit_s=600.0, preemptible=True, filler=True, grace_s=0.0)
    lab.step()
    lab.now = 1.0
    reserve(lab, "r1", 1.0)
    assert make_way(lab) == [filler]


def test_who_is_left_alone_in_a_reservation_is_named_with_the_time_at_which_it_goes() -> None:
    lab, victim = lab_with(named("auto"), grace_s=10.0)
    lab.now = 5.0
    made = reserve(lab, "r1", 5.0)
    inside = lab.submit(8, user="mal", reservation="r1")
    plan = lab.step()
    assert (plan.preempts, plan.look_again_at) == ((), 60.0)
    late = overdue(lab.state.policy, lab.run(victim), 15.0, made)
    assert late is not None and late.until == 70.0
    assert "asked to end in 45 s" in late.text
    reasons = {one.code: one for one in explain(lab.state, 15.0, inside).reasons}
    assert (reasons["overdue"].until, reasons["reserved"].runs) == (70.0, (victim,))
    assert "nodes" not in reasons, "they are in service"


def test_a_reservation_takes_gpus_of_work_that_has_had_its_time_first() -> None:
    lab = Lab(node("a", 4), node("b", 4), policy=named("auto"))
    lab.submit(4, takes=FOREVER, **SAVES)
    lab.step()
    lab.now = 100.0
    lab.submit(4, takes=2000.0, **SAVES)
    lab.step()
    lab.now = 110.0
    assert where(choose(lab.state, Request(4), 110.0, 700.0, 110.0)) == {"a": [0, 1, 2, 3]}
