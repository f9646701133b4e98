"""What is stopping already, and how far others count on it: while it is due soon, never when it outlived its kill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.core import events as e
from rota.core.explain import explain
from rota.core.forecast import at_most, believed, forecast, likely
from rota.core.node import Node
from rota.core.odds import Scenarios
from rota.core.overdue import DEAD_WITHIN_S, GIVEN_UP_AFTER_S
from rota.core.policy import Backfill, Policy
from rota.core.presets import named
from rota.core.run import Cause, Exit
from tests.unit.core.kit import CRITICAL, LOW, NORMAL, Lab, node

DAY = 86400.0
HOUR = 3600.0
ON = Policy(preemption=True)
POLICIES = [ON, named("auto"), named("easy"), named("conservative")]


def leaving(
    *nodes: Node, grace_s: float, policy: Policy = ON, prey_grace_s: float = 10.0, gpus: int = 2
) -> tuple[Lab, str, str]:
    """One that was cancelled and has not gone yet, and one beside it that may be stopped."""
    lab = Lab(*(nodes or (node("a", 4),)), policy=replace(policy, preemption=True))
    going = lab.submit(gpus, takes=DAY, user="mal", grace_s=grace_s)
    lab.step()
    prey = lab.submit(
        2, takes=DAY, user="ali", priority=LOW, preemptible=True, saves=True, grace_s=prey_grace_s, time_limit_s=DAY
    )
    lab.step()
    lab.now += 100.0
    lab.stop(going, Cause.CANCELLED)
    return lab, going, prey


def asked(lab: Lab) -> list[str]:
    return [stop.run_id for stop in lab.plan().preempts]


# -- whom to wait for -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_who_outlived_its_kill_keeps_nobody_from_preempting(policy: Policy):
    lab, _, prey = leaving(grace_s=1.0, policy=policy)
    hunter = lab.submit(2, user="bob", priority=CRITICAL)
    plan = lab.step()
    assert plan.preempts == (), "it is due in a second"
    assert plan.look_again_at == lab.now + 1.0 + DEAD_WITHIN_S, "nothing else may happen by then"
    lab.now = plan.look_again_at
    assert [(stop.run_id, stop.for_run) for stop in lab.step().preempts] == [(prey, hunter)]
    assert asked(lab) == [], "that one suffices"
    lab.end(prey, Exit(Cause.PREEMPTED))
    assert [start.run_id for start in lab.step().starts] == [hunter]


def test_a_victim_that_does_not_die_is_replaced_by_another():
    lab = Lab(node("a", 4), policy=ON)
    for _ in range(2):
        lab.submit(2, takes=DAY, priority=LOW, preemptible=True)
        lab.step()
        lab.now += 1
    lab.submit(2, priority=CRITICAL)
    (stuck,) = [stop.run_id for stop in lab.step().preempts]
    lab.now += 10.0 + DEAD_WITHIN_S - 1
    assert asked(lab) == []
    lab.now += 1
    (other,) = [stop.run_id for stop in lab.step().preempts]
    assert other != stuck


def test_a_long_grace_of_one_does_not_delay_a_stop_that_is_much_sooner():
    lab, _, prey = leaving(grace_s=120.0)
    hunter = lab.submit(2, user="bob", priority=CRITICAL)
    assert [(stop.run_id, stop.for_run) for stop in lab.step().preempts] == [(prey, hunter)]
    lab.now += 5.0
    assert asked(lab) == [], "one is enough"


@pytest.mark.parametrize("grace_s", [10.0, 60.0])
def test_who_is_gone_about_as_soon_as_a_victim_would_be_is_waited_for(grace_s: float):
    lab, going, _ = leaving(grace_s=grace_s)
    hunter = lab.submit(2, user="bob", priority=CRITICAL)
    lab.until(lab.now + grace_s)
    assert lab.started[hunter] == [100.0 + grace_s]
    assert lab.run(going).attempt is None


def test_a_victim_that_needs_as_long_is_not_stopped_instead():
    lab, _, _ = leaving(grace_s=120.0, prey_grace_s=100.0)
    lab.submit(2, user="bob", priority=CRITICAL)
    assert asked(lab) == []


def test_the_time_in_which_a_victim_is_left_alone_counts_as_its_need():
    """It was stopped before: it is left alone for 5 minutes after its start, and so the other is gone sooner."""
    lab = Lab(node("a", 4), policy=ON)
    prey = lab.submit(2, takes=DAY, user="ali", priority=LOW, preemptible=True)
    lab.step()
    lab.stop(prey, Cause.PREEMPTED, for_run="somebody")
    lab.end(prey, Exit(Cause.PREEMPTED))
    going = lab.submit(2, takes=DAY, user="mal", grace_s=200.0)
    lab.step()
    assert lab.run(prey).attempt is not None
    lab.stop(going, Cause.CANCELLED)
    hunter = lab.submit(2, user="bob", priority=CRITICAL)
    lab.until(lab.now + 250.0)
    assert lab.started[hunter] == [200.0]
    assert len(lab.started[prey]) == 2


def test_a_victim_with_a_long_grace_is_waited_for_instead_of_stopping_a_second_one():
    lab = Lab(node("a", 4), policy=ON)
    slow = lab.submit(4, takes=DAY, priority=LOW, preemptible=True, grace_s=250.0)
    lab.step()
    hunter = lab.submit(2, priority=CRITICAL)
    assert [stop.run_id for stop in lab.step().preempts] == [slow]
    lab.tell(e.NodeSeen(at=lab.now, node=node("b", 1)))
    lab.submit(1, takes=DAY, priority=LOW, preemptible=True, grace_s=1.0)
    assert len(lab.step().starts) == 1, "one that would be gone sooner"
    lab.submit(1, priority=CRITICAL)
    for _ in range(3):
        lab.now += 20.0
        plan = lab.step()
        assert (plan.preempts, plan.starts) == ((), ())
    lab.until(300.0)
    assert lab.started[hunter] == [250.0]


def test_a_gang_stops_nobody_hours_before_the_rest_of_its_room_is_there():
    """An admin gave the one that leaves a day of grace. It is asked for again when that is nearly over."""
    lab, _, prey = leaving(grace_s=DAY)
    gang = lab.submit(4, user="bob", priority=CRITICAL)
    while not (plan := lab.step()).preempts:
        at = plan.look_again_at
        assert at is not None and DAY - 200.0 < at < 100.0 + DAY
        lab.now = at
    assert [(stop.run_id, stop.for_run) for stop in plan.preempts] == [(prey, gang)]


def test_fillers_go_for_who_is_booked_for_now_though_another_leaves_at_leisure():
    lab = Lab(node("a", 4), policy=named("conservative"))
    going = lab.submit(2, takes=DAY, grace_s=HOUR)
    lab.step()
    filler = lab.submit(2, takes=DAY, preemptible=True, filler=True)
    lab.step()
    lab.now += 100.0
    lab.stop(going, Cause.CANCELLED)
    lab.submit(2, user="bob")
    assert asked(lab) == [filler]


# -- what is planned behind it ----------------------------------------------------------------------------------------
def undead(policy: Policy, for_s: float = GIVEN_UP_AFTER_S) -> tuple[Lab, str]:
    """Of eight GPUs two are held by one that was due to be killed so long ago, four for two hours; two are free."""
    lab = Lab(node("a"), policy=policy)
    stuck = lab.submit(2, takes=DAY, user="mal", grace_s=1.0)
    lab.submit(4, takes=2 * HOUR, time_limit_s=2 * HOUR, user="ali")
    lab.step()
    lab.stop(stuck, Cause.CANCELLED)
    lab.now = 1.0 + for_s
    return lab, stuck


@pytest.mark.parametrize("name", ["auto", "easy", "conservative"])
def test_gpus_are_not_kept_idle_beside_one_that_does_not_die(name: str):
    """The head waits for four: it gets its reservation when the long one ends, and a short one passes until then."""
    lab, _ = undead(named(name))
    head = lab.submit(4, takes=HOUR, time_limit_s=HOUR, user="bob")
    short = lab.submit(2, takes=600.0, time_limit_s=600.0, user="eve")
    plan = lab.step()
    assert plan.reserve is not None
    assert (plan.reserve.run_id, plan.reserve.at) == (head, 2 * HOUR)
    assert [start.run_id for start in plan.starts] == [short]


def test_a_reservation_is_not_given_up_for_a_driver_that_takes_minutes():
    """What was free of it would be gone for hours."""
    lab, _ = undead(named("easy"), GIVEN_UP_AFTER_S - 60.0)
    head = lab.submit(4, takes=HOUR, time_limit_s=HOUR, user="bob")
    lab.submit(2, takes=DAY, time_limit_s=DAY, user="eve")
    plan = lab.step()
    assert plan.reserve is not None
    assert (plan.reserve.run_id, plan.reserve.at) == (head, lab.now)
    assert plan.starts == ()
    assert plan.look_again_at == lab.now + 60.0


@pytest.mark.parametrize("backfill", [Backfill.EASY, Backfill.CONSERVATIVE])
def test_who_needs_the_gpus_of_one_that_does_not_die_has_no_reservation_and_is_told_why(backfill: Backfill):
    lab, stuck = undead(Policy(backfill=backfill))
    wide = lab.submit(8, user="bob", time_limit_s=HOUR)
    assert lab.step().reserve is None
    reasons = {reason.code: reason for reason in explain(lab.state, lab.now, wide).reasons}
    assert "nodes" not in reasons, "none is out of service"
    assert reasons["resources"].until is None
    assert "has not died" in reasons["resources"].text
    assert stuck in reasons["resources"].runs
    assert (reasons["overdue"].runs, reasons["overdue"].until) == ((stuck,), None)


# -- what is foretold -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("for_s", [DEAD_WITHIN_S, GIVEN_UP_AFTER_S])
def test_no_start_is_foretold_from_one_that_does_not_die(for_s: float):
    lab, _ = undead(named("auto"), for_s)
    wide = lab.submit(8, takes=60.0, time_limit_s=60.0, user="bob")
    fits = lab.submit(4, takes=60.0, time_limit_s=60.0, user="bob")
    for lasts in (believed, likely, at_most):
        found = forecast(lab.state, lab.now, [wide, fits], lasts=lasts)
        assert wide not in found
        assert lab.now < found[fits] <= 2 * HOUR + 10.0
    odds = Scenarios(lab.state, lab.now).odds(wide)
    assert (odds.p50, odds.p90, odds.confidence) == (None, None, "")


def test_nor_from_one_that_did_not_die_at_its_limit():
    lab = Lab(node("a", 2), policy=named("auto"))
    lab.submit(2, takes=DAY, time_limit_s=50.0)
    lab.step()
    waiting = lab.submit(2, user="bob", priority=NORMAL)
    lab.now = 50.0 + 10.0 + DEAD_WITHIN_S - 1.0
    assert waiting in forecast(lab.state, lab.now, [waiting])
    lab.now += 1.0
    for lasts in (believed, at_most):
        assert forecast(lab.state, lab.now, [waiting], lasts=lasts) == {}


def test_a_forecast_reckons_with_the_stop_that_is_made_instead():
    lab, _, _ = leaving(grace_s=1.0, policy=named("auto"))
    hunter = lab.submit(2, user="bob", priority=CRITICAL, time_limit_s=60.0)
    lab.step()
    lab.now += 1.0 + DEAD_WITHIN_S
    lab.step()
    assert forecast(lab.state, lab.now, [hunter], lasts=at_most) == {hunter: lab.now + 10.0}


# -- victims that die slowly ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("grace_s", [0.0, 10.0])
@pytest.mark.parametrize("gpus", [1, 4])
def test_at_most_one_more_is_stopped_for_a_run_where_a_driver_takes_a_minute(grace_s: float, gpus: int):
    lab = Lab(node("a", 8), policy=ON)
    for number in range(8):
        lab.submit(
            user=f"u{number}", takes=DAY, priority=LOW, preemptible=True, saves=True, grace_s=grace_s, time_limit_s=DAY
        )
    lab.step()
    lab.now = HOUR
    hunter = lab.submit(gpus, user="bob", priority=CRITICAL)
    given_back: dict[str, float] = {}
    while hunter not in lab.started and lab.now < 2 * HOUR:
        for run_id in [run_id for run_id, at in given_back.items() if at <= lab.now]:
            if lab.run(run_id).attempt is not None:
                lab.end(run_id, Exit(Cause.PREEMPTED))
        given_back |= {stop.run_id: lab.now + grace_s + 60.0 for stop in lab.step().preempts}
        lab.now += 1.0
    assert lab.started[hunter] == [HOUR + grace_s + 60.0]
    assert len(given_back) <= gpus + 1


def test_of_victims_that_never_die_one_is_replaced_at_once_and_one_every_five_minutes():
    lab = Lab(node("a", 4), policy=ON)
    for _ in range(4):
        lab.submit(takes=DAY, priority=LOW, preemptible=True)
    lab.step()
    lab.now = HOUR
    hunter = lab.submit(priority=CRITICAL)
    asked_at = []
    while lab.now < 2 * HOUR:
        plan = lab.step()
        asked_at += [lab.now - HOUR] * len(plan.preempts)
        if not plan.preempts and plan.look_again_at is None:
            break
        lab.now = lab.now + 1e-6 if plan.preempts or plan.look_again_at is None else plan.look_again_at
    assert asked_at == pytest.approx([0.0, 15.0, 15.0 + 10.0 + 300.0, 325.0 + 10.0 + 600.0], abs=1.0)
    assert hunter not in lab.started


def test_after_hours_of_suspension_at_most_one_more_is_stopped():
    """The house's time counts them, a grace does not: all victims seem to have outlived their kill."""
    lab = Lab(node("a", 8), policy=ON)
    for _ in range(8):
        lab.submit(takes=DAY, priority=LOW, preemptible=True, grace_s=60.0)
    lab.step()
    lab.now = HOUR
    lab.submit(4, priority=CRITICAL)
    assert len(lab.step().preempts) == 4
    lab.now += 10 * HOUR
    assert len(lab.step().preempts) == 1
    lab.now += 60.0
    assert asked(lab) == []


def test_a_victim_that_does_not_die_is_nobody_elses_to_wait_for():
    lab = Lab(node("a", 3), policy=ON)
    for _ in range(3):
        lab.submit(takes=DAY, priority=LOW, preemptible=True)
    lab.step()
    lab.submit(priority=CRITICAL)
    lab.step()
    lab.now += 10.0 + DEAD_WITHIN_S
    assert len(lab.step().preempts) == 1
    lab.submit(priority=CRITICAL)
    assert len(lab.step().preempts) == 1, "another one is blocked, and has nobody stopped for it yet"


# -- who goes and will be back ----------------------------------------------------------------------------------------
def back_soon(priority: int, by: str) -> tuple[Lab, str, list[str]]:
    """One on 1 of 8 GPUs ignores its signal for ten minutes and stands well; all else is held by LOW work that saves.
    `by`: for whom it goes: a run that is "gone" again, or one of its owner that is "waiting" still."""
    lab = Lab(node("a", 4), node("b", 4), policy=replace(named("auto"), preemption=True))
    ignores = lab.submit(
        1, user="mal", takes=DAY, expected=1.0, priority=priority, preemptible=True, saves=True, grace_s=600.0
    )
    preys = [
        lab.submit(gpus, user="ali", takes=DAY, priority=LOW, preemptible=True, saves=True, time_limit_s=DAY)
        for gpus in (3, 4)
    ]
    lab.step()
    lab.now += 2.0
    other = "somebody"
    if by == "waiting":
        other = lab.submit(1, user="mal", takes=DAY, expected=0.1, priority=CRITICAL)
    lab.stop(ignores, Cause.PREEMPTED, for_run=other)
    return lab, ignores, preys


@pytest.mark.parametrize(("priority", "hunts"), [(3, NORMAL), (CRITICAL, CRITICAL)])
def test_who_will_be_back_on_its_own_gpu_keeps_nobody_from_preempting(priority: int, hunts: int):
    lab, ignores, preys = back_soon(priority, "gone")
    hunter = lab.submit(2, user="bob", priority=hunts, time_limit_s=HOUR)
    (stop,) = lab.step().preempts
    assert (stop.run_id in preys, stop.for_run) == (True, hunter)
    lab.now += 5.0
    lab.end(stop.run_id, Exit(Cause.PREEMPTED))
    assert hunter in [start.run_id for start in lab.step().starts]
    assert lab.run(ignores).attempt is not None


def test_who_will_be_back_and_needs_the_same_room_is_waited_for_a_minute_at_most():
    lab, _, preys = back_soon(3, "waiting")
    lab.submit(2, user="bob", priority=NORMAL, time_limit_s=HOUR)
    plan = lab.step()
    assert plan.preempts == (), "the one that goes stands before it and has no room but the victim's"
    asked_at = lab.now
    assert plan.look_again_at is not None and plan.look_again_at <= asked_at + 60.0
    lab.now = asked_at + 60.0
    (stop,) = lab.step().preempts
    assert stop.run_id in preys


def test_who_will_be_back_with_a_lower_priority_keeps_nobody_from_preempting():
    lab, _, preys = back_soon(LOW, "waiting")
    lab.submit(2, user="bob", priority=NORMAL, time_limit_s=DAY)
    (stop,) = lab.step().preempts
    assert stop.run_id in preys


# -- fillers beside those who go --------------------------------------------------------------------------------------
@pytest.mark.parametrize("leaves", ["cancelled", "at its limit"])
def test_a_filler_runs_until_the_rest_of_the_room_is_free(leaves: str) -> None:
    """Stopped at once it would start again and again, for the other run keeps the room from being used."""
    lab = Lab(node("a"), policy=named("las"))
    other = lab.submit(4, takes=5.0, time_limit_s=DAY if leaves == "cancelled" else 3.0, grace_s=5.0)
    lab.step()
    wide = lab.submit(8, takes=HOUR, user="bob")
    lab.step()
    filler = lab.submit(4, takes=HOUR, preemptible=True, filler=True)
    lab.step()
    if leaves == "cancelled":
        lab.stop(other, Cause.CANCELLED)
    for _ in range(3):
        plan = lab.step()
        assert (plan.starts, plan.preempts) == ((), ())
        why = explain(lab.state, lab.now, wide)
        assert [reason.runs for reason in why.reasons if "fillers on its GPUs" in reason.text] == [(filler,)]
    assert lab.run(filler).attempts_made == 1
    lab.now = 5.0
    lab.end(other)
    assert [(stop.run_id, stop.for_run) for stop in lab.step().preempts] == [(filler, wide)]
    lab.end(filler, Exit(Cause.PREEMPTED))
    assert [start.run_id for start in lab.step().starts] == [wide]
