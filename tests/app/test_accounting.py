"""P5: GPU-seconds are recorded exactly once and equal the interval held."""

from __future__ import annotations

import os
import signal

import pytest

from rota.adapters.clock import ManualClock
from rota.app.commands import Cancel
from rota.core import events as e
from rota.core.run import RunState
from tests.app.house import ANN, BOB, House, until, with_policy


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed(build, clock) -> House:
    """A house whose time stands still unless the test moves it: the figures are exact."""
    house: House = build()
    house.clock = lambda: clock
    return house.open()


def totals(house: House) -> dict[str, tuple[int, float]]:
    return {total.user: (total.attempts, total.gpu_s) for total in house.rota.totals(0.0, 1e12)}


def test_gpu_seconds_are_gpus_times_the_interval_held(timed, clock):
    for gpus, seconds in ((1, 10.0), (3, 7.5), (8, 2.25), (0, 100.0)):
        run_id, gate = timed.gated(gpus)
        timed.in_state(run_id, RunState.RUNNING)
        clock.advance(seconds)
        gate.open(2 if gpus > 4 else 1)  # a gang has a task on each node
        run = timed.wait(run_id)
        (past,) = timed.store.attempts(run_id)
        assert past.gpu_s == run.past[0].gpu_s == gpus * seconds
        (planned,) = timed.events(e.AttemptPlanned, run_id)
        (ended,) = timed.events(e.AttemptEnded, run_id)
        assert ended.gpu_s == gpus * (clock.tick() - planned.tick)
        assert past.ended_at - past.planned_at == seconds
    assert totals(timed) == {"ann": (4, 10.0 + 22.5 + 18.0)}


def test_the_grace_of_a_cancel_is_held_time_too(timed, clock):
    run_id = timed.submit("trap '' TERM; echo ready; while :; do sleep 1000; done", 2, grace_s=300.0)
    until(lambda: "ready" in timed.output(run_id), "the job has set its trap")
    timed.in_state(run_id, RunState.RUNNING)
    clock.advance(5.0)
    timed.do(Cancel(run_id), ANN)
    clock.advance(3.0)
    timed.do(Cancel(run_id, grace_s=0.0), ANN)
    assert timed.wait(run_id).past[-1].gpu_s == 2 * 8.0


def test_every_attempt_counts_once_and_waiting_counts_nothing(timed, clock):
    with_policy(timed, retry_base_s=100.0, retry_cap_s=100.0)
    run_id = timed.running(2, max_retries=1)
    clock.advance(4.0)
    os.kill(timed.shim_of(run_id), signal.SIGKILL)
    timed.in_state(run_id, RunState.QUEUED)
    clock.advance(1000.0)
    timed.rota.ask(lambda state, now: None)  # time moved by hand wakes nobody
    until(lambda: timed.run(run_id).attempts_made == 2, "the second attempt")
    timed.in_state(run_id, RunState.RUNNING)
    clock.advance(6.0)
    os.kill(timed.shim_of(run_id), signal.SIGKILL)
    assert timed.wait(run_id).state is RunState.LOST
    assert [past.gpu_s for past in timed.store.attempts(run_id)] == [8.0, 12.0]
    assert totals(timed) == {"ann": (2, 20.0)}


def test_what_never_began_but_held_its_gpus_is_counted(timed, clock):
    from unittest.mock import patch

    from rota.adapters.backends.local import LocalBackend

    with patch.object(LocalBackend, "launch", lambda self, order: None):
        run_id = timed.sleeper(4)
        clock.advance(2.0)
        timed.do(Cancel(run_id), ANN)
        assert timed.wait(run_id).past[-1].gpu_s == 8.0


def test_totals_are_per_person_and_per_period(timed, clock):
    begun = clock.now()
    for who, gpus, seconds in ((ANN, 1, 10.0), (BOB, 4, 10.0), (ANN, 2, 30.0)):
        run_id, gate = timed.gated(gpus, who)
        timed.in_state(run_id, RunState.RUNNING)
        clock.advance(seconds)
        gate.open()
        timed.wait(run_id)
    assert totals(timed) == {"bob": (1, 40.0), "ann": (2, 70.0)}
    assert [total.user for total in timed.rota.totals(0.0, 1e12)] == ["ann", "bob"]
    early = {total.user: total.gpu_s for total in timed.rota.totals(begun, begun + 30.0)}
    assert early == {"ann": 10.0, "bob": 40.0}


def test_fair_share_usage_is_trued_up_at_the_end(timed, clock):
    run_id, gate = timed.gated(2, estimate_s=1000.0)
    timed.in_state(run_id, RunState.RUNNING)
    assert timed.rota.ask(lambda s, now: s.usage["ann"].gpu_s) == pytest.approx(2000.0)
    clock.advance(5.0)
    gate.open()
    timed.wait(run_id)
    assert timed.rota.ask(lambda s, now: s.usage["ann"].gpu_s) == pytest.approx(10.0, rel=0.01)


def test_time_while_nobody_looked_is_held_until_known(timed, clock):
    """Rule 13: an attempt holds its GPUs from its plan until it is known dead."""
    run_id, gate = timed.gated(1)
    timed.in_state(run_id, RunState.RUNNING)
    timed.close()
    gate.open()
    clock.advance(50.0)
    timed.open()
    assert timed.wait(run_id).past[-1].gpu_s == 50.0
    assert len(timed.store.attempts(run_id)) == 1
