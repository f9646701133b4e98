"""The time between the polite signal and SIGKILL: how long it may be, for whom, and that it defeats no limit."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from rota.adapters.backends.local import LocalBackend
from rota.adapters.clock import SystemClock
from rota.app import loop as loop_module
from rota.app.authz import Principal, Role
from rota.app.commands import Cancel, Rerun, Reserve, Submit
from rota.app.errors import Invalid
from rota.app.reconcile import now_and_then
from rota.core import events as e
from rota.core import overrun
from rota.core.grace import kill_at
from rota.core.ids import run_of
from rota.core.policy import Policy
from rota.core.run import Cause, RunState, Stop
from tests.app.conftest import Build
from tests.app.house import ANN, BOB, ROOT, House, until, with_policy
from tests.app.test_clock import Jumping

DAY = 86400.0
DEAF = "trap '' TERM INT HUP USR2; echo ready; while :; do sleep 1000; done"
USR2 = 12
AGENT = Principal("bot", Role.AGENT, acts_for="ann")


def deaf(house: House, gpus: int = 1, **more: Any) -> str:
    """A run that ignores every polite signal."""
    run_id = house.submit(DEAF, gpus, **more)
    until(lambda: "ready" in house.output(run_id), "it ignores the signals")
    return house.in_state(run_id, RunState.RUNNING)


def stop_of(house: House, run_id: str) -> Stop | None:
    attempt = house.run(run_id).attempt
    return attempt.stop if attempt is not None else None


def grace_of(house: House, run_id: str) -> float:
    stop = stop_of(house, run_id)
    assert stop is not None
    return stop.grace_s


def stored_before(house: House, line: str, **more: Any) -> str:
    """A run with a grace of a day, as a version without a cap wrote it."""
    run_id = os.urandom(6).hex()  # by its mark its processes are told from those of tests beside this one
    spec = house.spec(line, **{"grace_s": DAY, **more})
    event = e.RunSubmitted(
        at=house.rota.now(), by="ann", run_id=run_id, seq=10_000, user="ann", spec=spec, held=False,
        waiting_on=(), expected_s=3600.0, expected_from="default",
    )  # fmt: skip
    house.loop.call(lambda desk: desk.write(event)).result(60)
    return run_id


# -- how long it may be -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("who", [ANN, AGENT])
def test_a_grace_above_the_cap_is_refused_and_the_refusal_names_the_setting(house: House, who: Principal) -> None:
    with pytest.raises(Invalid, match=r"max_grace_seconds\); use at most 300, up to 10 min with a chec") as refused:
        house.submit("true", who=who, grace_s=DAY)
    assert refused.value.field == "grace_s"
    assert house.run(house.submit("true", who=who, grace_s=300.0)).spec.grace_s == 300.0
    with pytest.raises(Invalid, match="max_checkpoint_grace_seconds"):
        house.submit("true", who=who, grace_s=601.0, checkpoint_signal=USR2)
    assert house.run(house.submit("true", who=who, grace_s=600.0, checkpoint_signal=USR2)).spec.grace_s == 600.0


def test_an_admin_may_give_more_and_nobody_can_take_it_over(house: House) -> None:
    granted = house.do(Submit(house.spec("true", grace_s=DAY), user="ann"), ROOT)
    assert granted.spec.long_grace
    house.wait(granted.id)
    again = house.do(Rerun(granted.id), ANN)
    assert (again.spec.grace_s, again.spec.long_grace) == (300.0, False), "a rerun is a submit by somebody else"
    forged = house.do(Submit(house.spec("true", grace_s=60.0, long_grace=True)), ANN)
    assert not forged.spec.long_grace


def test_the_cap_is_a_part_of_the_policy(house: House) -> None:
    with_policy(house, max_grace_s=1.0, max_checkpoint_grace_s=2.0)
    with pytest.raises(Invalid, match="use at most 1, up to 2 s"):
        house.submit("true", grace_s=11.0)
    plain = deaf(house)
    house.do(Cancel(plain), ANN)
    assert grace_of(house, plain) == 1.0, "the default is not refused, but capped"


# -- a limit is a limit -----------------------------------------------------------------------------------------------
def test_a_run_whose_limit_and_grace_reach_into_a_reservation_waits(build: Build) -> None:
    house = build(1, 2).open()
    house.do(Reserve(2, start=house.rota.now() + 300.0, length_s=600.0), BOB)
    late = house.submit("true", 1, time_limit_s=30.0, grace_s=300.0)
    in_time = house.submit("true", 1, time_limit_s=30.0, grace_s=60.0)
    house.wait(in_time)
    assert house.run(late).state is RunState.QUEUED
    (reason,) = [one for one in house.rota.explain(late).reasons if one.code == "reserved"]
    assert "kept for a reservation" in reason.text


def test_a_run_stored_with_a_days_grace_is_killed_after_the_cap(house: House) -> None:
    with_policy(house, max_grace_s=0.3)
    run_id = stored_before(house, DEAF, time_limit_s=3.0)
    ended = house.wait(run_id)
    assert (ended.state, ended.past[-1].exit.cause) == (RunState.FAILED, Cause.TIME_LIMIT)


def test_a_cap_that_is_lowered_holds_for_what_runs_already(house: House) -> None:
    """Its supervisor was told of two hours when it was launched, and goes by that until it is told otherwise."""
    with_policy(house, max_grace_s=7200.0)
    run_id = deaf(house, time_limit_s=8.0, grace_s=7200.0)
    with_policy(house, max_grace_s=0.5)
    ended = house.wait(run_id)
    assert (ended.state, ended.past[-1].exit.cause) == (RunState.FAILED, Cause.TIME_LIMIT)
    (stop,) = house.events(e.StopRequested, run_id)
    assert (stop.cause, stop.grace_s, stop.by) == (Cause.TIME_LIMIT, 0.5, "rota")


def test_what_an_older_version_launched_with_a_days_grace_is_ended_too(build: Build) -> None:
    house = build(1, 1).open()
    with_policy(house, max_grace_s=DAY)
    run_id = deaf(house, time_limit_s=8.0, grace_s=DAY)
    (planned,) = house.events(e.AttemptPlanned, run_id)
    assert planned.grace_s is None, "as such events are read: the run's own grace"
    house.reopen()
    with_policy(house, max_grace_s=0.5)
    assert house.wait(run_id).past[-1].exit.cause is Cause.TIME_LIMIT


def test_a_wall_clock_set_forward_ends_nobody_early(build: Build) -> None:
    """The next server believes the clock, so the house's time is a day ahead; the ticks since the start are not."""
    clock = Jumping()
    house = build(1, 1)
    house.clock = lambda: clock
    house.open()
    run_id = house.running(time_limit_s=1800.0, grace_s=120.0)
    with_policy(house, max_grace_s=1.0)
    clock.ahead += DAY
    house.reopen()
    house.settled()
    assert house.run(run_id).attempt is not None
    assert stop_of(house, run_id) is None
    assert house.events(e.StopRequested, run_id) == []


def test_the_grace_that_a_supervisor_was_given_is_kept_with_the_attempt(house: House) -> None:
    with_policy(house, max_grace_s=20.0)
    run_id = stored_before(house, DEAF, time_limit_s=1000.0)
    house.in_state(run_id, RunState.RUNNING)
    with_policy(house, max_grace_s=300.0)
    run = house.run(run_id)
    assert run.attempt is not None and run.attempt.started_at is not None
    assert kill_at(house.rota.policy(), run) == run.attempt.started_at + 1020.0, "a higher cap comes too late for it"
    house.do(Cancel(run_id, grace_s=0.0), ANN)


# -- stops on behalf of others ----------------------------------------------------------------------------------------
def test_an_admins_cancel_waits_no_longer_than_the_policy_says(house: House) -> None:
    run_id = deaf(house, grace_s=300.0)
    with_policy(house, max_grace_s=0.3)
    house.do(Cancel(run_id), ROOT)
    assert house.wait(run_id).state is RunState.CANCELLED
    assert [stop.grace_s for stop in house.events(e.StopRequested, run_id)] == [0.3]


def test_also_where_an_admin_gave_it_more_which_only_its_owner_can_use(house: House) -> None:
    runs = [house.do(Submit(house.spec(DEAF, grace_s=DAY), user="ann"), ROOT).id for _ in range(2)]
    until(lambda: all("ready" in house.output(run_id) for run_id in runs), "they ignore the signals")
    house.do(Cancel(runs[0]), ANN)
    house.do(Cancel(runs[1]), ROOT)
    assert [grace_of(house, run_id) for run_id in runs] == [DAY, 300.0]


def test_preemption_waits_no_longer_than_the_policy_says(build: Build) -> None:
    house = build(1, 2).open()
    with_policy(house, preemption=True, max_grace_s=0.3)
    low = stored_before(house, DEAF, priority=1, preemptible=True)
    until(lambda: "ready" in house.output(low), "it ignores the signals")
    urgent = house.submit("true", 2, BOB, priority=4)
    assert house.wait(urgent).state is RunState.SUCCEEDED
    assert house.last_attempt(low).exit.cause is Cause.PREEMPTED


# -- asking again -----------------------------------------------------------------------------------------------------
def test_a_later_cancel_hastens_and_never_lengthens(house: House) -> None:
    run_id = deaf(house, grace_s=300.0)
    policy = house.rota.policy()
    house.do(Cancel(run_id, grace_s=5.0), ANN)
    first = kill_at(policy, house.run(run_id))
    for who, grace_s in ((ANN, None), (ROOT, None), (ROOT, DAY), (ANN, 300.0)):
        house.do(Cancel(run_id, grace_s=grace_s), who)
        assert kill_at(policy, house.run(run_id)) == first
    assert len(house.events(e.StopRequested, run_id)) == 1
    with pytest.raises(Invalid, match="max_grace_seconds"):
        house.do(Cancel(run_id, grace_s=DAY), ANN)
    house.do(Cancel(run_id, grace_s=0.0), ANN)
    assert house.wait(run_id).state is RunState.CANCELLED


def test_a_cancel_does_not_outlast_the_time_limit(house: House) -> None:
    run_id = deaf(house, time_limit_s=1000.0, grace_s=60.0)
    run = house.do(Cancel(run_id, grace_s=DAY), ROOT)
    assert kill_at(house.rota.policy(), run) == pytest.approx(run.attempt.started_at + 1060.0)
    assert run.attempt.stop.at + run.attempt.stop.grace_s == pytest.approx(run.attempt.started_at + 1060.0)


def test_a_cancel_of_what_is_being_preempted_keeps_its_bound(build: Build) -> None:
    house = build(1, 2).open()
    with_policy(house, preemption=True)
    low = deaf(house, 2, priority=1, preemptible=True, grace_s=60.0)
    house.submit("true", 2, BOB, priority=4)
    until(lambda: stop_of(house, low), "it is being preempted")
    bound = kill_at(house.rota.policy(), house.run(low))
    with_policy(house, max_grace_s=300.0)
    cancelled = house.do(Cancel(low, grace_s=300.0), ANN)
    assert cancelled.attempt.stop.cause is Cause.CANCELLED
    assert kill_at(house.rota.policy(), cancelled) == pytest.approx(bound)


# -- a stop that is under way when the cap changes -----------------------------------------------------------------
def test_a_grace_that_was_begun_is_cut_when_the_cap_is_lowered(house: House) -> None:
    with_policy(house, max_grace_s=DAY)
    run_id = deaf(house, grace_s=DAY / 2)
    house.do(Cancel(run_id, why="wrong data"), ANN)
    assert grace_of(house, run_id) == DAY / 2
    with_policy(house, max_grace_s=0.5)
    ended = house.wait(run_id)
    assert (ended.state, ended.past[-1].exit.cause) == (RunState.CANCELLED, Cause.CANCELLED)
    first, second = house.events(e.StopRequested, run_id)
    assert (second.cause, second.grace_s, second.by, second.why) == (Cause.CANCELLED, 0.5, first.by, first.why)


def test_also_by_a_server_that_starts_with_it_under_way(build: Build) -> None:
    """As after an upgrade: the last version wrote down a grace that is above the cap."""
    house = build(1, 1).open()
    with_policy(house, max_grace_s=1.0, max_checkpoint_grace_s=1.0)
    run_id = deaf(house)
    attempt = house.run(run_id).attempt
    assert attempt is not None
    stop = e.StopRequested(
        at=house.rota.now(), by="ann", run_id=run_id, attempt_id=attempt.id, cause=Cause.CANCELLED, signal=15,
        grace_s=80_000.0,
    )  # fmt: skip
    house.loop.call(lambda desk: desk.write(stop)).result(60)
    house.reopen()
    assert house.wait(run_id).state is RunState.CANCELLED
    assert [one.grace_s for one in house.events(e.StopRequested, run_id)] == [80_000.0, 1.0]


def test_what_its_owner_asks_for_at_the_cancel_is_kept_up_to_the_cap(house: House) -> None:
    with_policy(house, max_grace_s=200.0)
    run_id = deaf(house, grace_s=10.0)
    house.do(Cancel(run_id, grace_s=150.0), ANN)
    with_policy(house, max_grace_s=180.0)  # has all be looked at again
    house.loop.call(lambda desk: now_and_then(house.loop, desk)).result(60)
    assert [stop.grace_s for stop in house.events(e.StopRequested, run_id)] == [150.0]
    house.do(Cancel(run_id, grace_s=0.0), ANN)


def test_what_an_admin_granted_is_not_cut(house: House) -> None:
    with_policy(house, max_grace_s=600.0)
    granted = house.do(Submit(house.spec(DEAF, grace_s=DAY), user="ann"), ROOT).id
    until(lambda: "ready" in house.output(granted), "it ignores the signals")
    plain = deaf(house, grace_s=500.0)
    house.do(Cancel(granted), ANN)
    house.do(Cancel(plain, grace_s=3600.0), ROOT)
    with_policy(house, max_grace_s=60.0)
    house.settled()
    assert [grace_of(house, run_id) for run_id in (granted, plain)] == [DAY, 3600.0]
    assert all(len(house.events(e.StopRequested, run_id)) == 1 for run_id in (granted, plain))
    for run_id in (granted, plain):
        house.do(Cancel(run_id, grace_s=0.0), ANN)


# -- what does not die ------------------------------------------------------------------------------------------------
def test_what_outlives_its_kill_is_named_without_a_bound(build: Build) -> None:
    """No stop reaches the supervisor, so nothing dies when it should: to others that looks like state D."""
    house = build(1, 1).open()
    run_id = deaf(house)
    with patch.object(LocalBackend, "stop", lambda backend, attempt_id, order: None):
        house.do(Cancel(run_id, grace_s=0.0), ANN)
        waiting = house.submit("true", who=BOB)

        def named() -> Any:
            reasons = house.rota.explain(waiting).reasons
            return [one for one in reasons if one.code == "overdue" and one.until is None]

        (reason,) = until(named, "it is named as one that outlived SIGKILL")
        assert reason.runs == (run_id,)
        assert "has not died" in reason.text
        assert (house.rota.eta(waiting), house.rota.latest(waiting)) == (None, None), "no start is promised from it"
        prospect = house.rota.prospect(waiting)
        assert (prospect.odds.p50, prospect.odds.confidence) == (None, "")
        assert run_id in prospect.why
    house.wait(run_id)
    assert house.wait(waiting).state is RunState.SUCCEEDED


def test_what_outlives_its_kill_does_not_keep_others_from_preempting(build: Build) -> None:
    house = build(1, 2).open()
    with_policy(house, preemption=True)
    stuck = deaf(house)
    prey = house.submit("exec sleep 1000", 1, priority=1, preemptible=True)
    until(lambda: house.run(prey).state is RunState.RUNNING, "the one that may be stopped runs")
    stop = LocalBackend.stop

    def deliver(backend: LocalBackend, attempt_id: str, order: Any) -> None:
        if run_of(attempt_id) != stuck:
            stop(backend, attempt_id, order)

    with patch.object(LocalBackend, "stop", deliver):
        house.do(Cancel(stuck, grace_s=0.0), ANN)
        urgent = house.submit("true", 1, BOB, priority=4)
        assert house.wait(urgent).state is RunState.SUCCEEDED
        assert house.run(stuck).attempt is not None, "it holds its GPU still"
        assert [past.for_run for past in house.run(prey).past] == [urgent]


# -- a supervisor that is stopped -------------------------------------------------------------------------------------
@pytest.mark.parametrize("line", ["kill -STOP $PPID; exec sleep 1000", "sleep 1; kill -STOP $PPID; exec sleep 1000"])
def test_a_limit_holds_though_the_job_stops_its_supervisor(
    house: House, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """It has the server's account, and so may. Before its start is known, and after it; nobody asks for anything."""
    monkeypatch.setattr(loop_module, "RECONCILE_S", 0.5)
    run_id = house.submit(line, time_limit_s=3.0, grace_s=0.5)
    house.loop.call(lambda desk: house.loop.reconcile_by(0.0)).result(60)
    ended = house.wait(run_id)
    assert ended.state is RunState.FAILED and "time limit" in ended.why


class Suspended(SystemClock):
    """Of a machine that slept; its supervisors are not told here, as if each were about to warn its run."""

    asleep_s = 0.0

    def tick(self) -> float:
        return super().tick() + self.asleep_s


def test_after_a_night_in_which_the_machine_slept_supervisors_are_left_to_warn_their_runs(build: Build) -> None:
    """The limit has passed meanwhile; the warning and the grace are given now, and none of it is cut short."""
    clock = Suspended()
    house = build(1, 1)
    house.clock = lambda: clock
    house.open()
    run_id = house.running(time_limit_s=3600.0, grace_s=30.0, checkpoint_signal=USR2, preemptible=True)
    clock.asleep_s += DAY / 3
    for _ in range(3):
        house.loop.call(lambda desk: now_and_then(house.loop, desk)).result(60)
    assert house.events(e.StopRequested, run_id) == []
    house.do(Cancel(run_id, grace_s=0.0), ANN)


def test_one_whose_supervisor_had_to_be_killed_at_its_limit_is_not_tried_again(house: House) -> None:
    """Or it would have its time again, as often as it may be retried."""
    run_id = deaf(house, time_limit_s=1000.0, max_retries=5)
    run = house.run(run_id)
    asked = replace(overrun.request(Policy(), run, house.rota.now()), grace_s=1000.0)
    house.loop.call(lambda desk: desk.write(asked)).result(60)
    os.kill(house.shim_of(run_id), signal.SIGKILL)
    ended = house.wait(run_id)
    assert (ended.state, ended.attempts_made) == (RunState.FAILED, 1)
    assert "time limit" in ended.why and "supervisor was killed" in ended.why
