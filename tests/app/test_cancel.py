"""Cancel in every state a run can be in, once, twice and too late."""

from __future__ import annotations

import sys
from unittest.mock import patch

import pytest

from rota.adapters.backends.local import LocalBackend
from rota.app.commands import Cancel
from rota.app.errors import Conflict, Invalid, NotFound
from rota.core import events as e
from rota.core.run import Cause, RunState
from tests.app.house import ANN, BOB, House, until

STUBBORN = "trap '' TERM INT HUP; echo ready; while :; do sleep 1000; done"
# A signal that comes just before a blocking call runs its Python handler only after the call, so every wait is short.
POLITE = """
import signal, sys, time
signal.signal(15, lambda *a: sys.exit(0))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def ready(house: House, run_id: str) -> str:
    until(lambda: "ready" in house.output(run_id), "the job has set its traps")
    return house.in_state(run_id, RunState.RUNNING)


@pytest.mark.parametrize("gpus", [1, 8])
def test_without_a_grace_nothing_is_asked_first(house, gpus):
    """A program that saves on TERM would be killed while it writes. Eight GPUs are a task on each of two nodes."""
    run_id = house.submit("trap 'echo asked' TERM; echo ready; while :; do sleep 0.01; done", gpus, grace_s=60.0)
    until(lambda: house.output(run_id).count("ready") == (2 if gpus == 8 else 1), "every task has set its trap")
    house.in_state(run_id, RunState.RUNNING)
    house.do(Cancel(run_id, grace_s=0.0), ANN)
    run = house.wait(run_id)
    assert (run.state, run.past[-1].exit.signal) == (RunState.CANCELLED, 9)
    assert "asked" not in house.output(run_id)


def test_a_held_run_is_cancelled_at_once(house):
    run = house.do(Cancel(house.submit("true", held=True), "no need"), ANN)
    assert (run.state, run.why) == (RunState.CANCELLED, "no need")
    assert run.attempts_made == 0


def test_a_queued_run_is_cancelled_at_once_and_never_starts(house):
    for _ in range(2):
        house.running(4)
    waiting = house.submit("true", 4)
    run = house.do(Cancel(waiting), ANN)
    assert (run.state, run.why) == (RunState.CANCELLED, "cancelled by ann")
    assert waiting not in house.starts()


def test_a_starting_run_is_vetoed_or_ended(house):
    """Orders are kept back: the run stays `starting`, as after a zygote that hangs."""
    with patch.object(LocalBackend, "launch", lambda self, order: None):
        run_id = house.sleeper(2)
        assert house.run(run_id).state is RunState.STARTING
        answer = house.do(Cancel(run_id), ANN)
        assert answer.attempt.stop.cause is Cause.CANCELLED
        run = house.wait(run_id)
    assert run.state is RunState.CANCELLED
    assert run.past[-1].exit.cause is Cause.NEVER_STARTED
    assert house.free() == 8


def test_a_running_run_stays_running_until_it_is_known_dead(house):
    run_id = ready(house, house.submit(STUBBORN, 3, grace_s=100.0))
    run = house.do(Cancel(run_id), ANN)
    assert (run.state, run.attempt.stop.by) == (RunState.RUNNING, "ann")
    assert house.free() == 5, "its GPUs are held while anything of it lives"
    house.do(Cancel(run_id, grace_s=0.0), ANN)
    run = house.wait(run_id)
    assert (run.state, run.past[-1].exit.signal) == (RunState.CANCELLED, 9)
    assert run.why == "cancelled by ann"
    assert house.free() == 8


def test_a_polite_end_within_the_grace_is_still_a_cancel(house):
    run_id = ready(house, house.submit((sys.executable, "-ISc", POLITE), grace_s=100.0))
    house.do(Cancel(run_id), ANN)
    run = house.wait(run_id)
    assert (run.state, run.past[-1].exit.cause, run.past[-1].exit.code) == (RunState.CANCELLED, Cause.CANCELLED, 0)


def test_the_second_cancel_changes_nothing_unless_it_is_shorter(house):
    run_id = ready(house, house.submit(STUBBORN, grace_s=300.0))
    for grace_s in (None, 300.0, 250.0, 270.0, None):
        house.do(Cancel(run_id, grace_s=grace_s), ANN)
    assert [stop.grace_s for stop in house.events(e.StopRequested, run_id)] == [300.0, 250.0]
    house.do(Cancel(run_id, grace_s=0.0), ANN)
    assert house.wait(run_id).state is RunState.CANCELLED


@pytest.mark.parametrize("line", ["true", "exit 3"])
def test_what_has_ended_cannot_be_cancelled(house, line):
    run_id = house.submit(line)
    ended = house.wait(run_id)
    version = house.store.load().version
    for _ in range(2):
        with pytest.raises(Conflict, match=f"already ended .{ended.state}."):
            house.do(Cancel(run_id), ANN)
    assert house.store.load().version == version
    assert house.run(run_id) == ended


def test_an_unknown_run_is_not_found(house):
    with pytest.raises(NotFound, match="no run 'ffffffffffff'"):
        house.do(Cancel("f" * 12), ANN)


@pytest.mark.parametrize("grace_s", [-1.0, float("nan"), float("inf"), 86401.0, 10**400])
def test_a_grace_that_is_no_time_is_refused(house, grace_s):
    run_id = house.running()
    with pytest.raises(Invalid, match="grace_s") as refusal:
        house.do(Cancel(run_id, grace_s=grace_s), ANN)
    assert refusal.value.field == "grace_s"
    assert house.events(e.StopRequested) == []


def test_a_job_that_forked_away_is_cancelled_whole(house):
    line = f"setsid sh -c '{STUBBORN}' & setsid sh -c '{STUBBORN}' & trap '' TERM; wait; sleep 1000"
    run_id = house.submit(line, grace_s=0.0)
    until(lambda: house.output(run_id).count("ready") == 2, "both have set their traps")
    house.in_state(run_id, RunState.RUNNING)
    house.do(Cancel(run_id), ANN)
    assert house.wait(run_id).state is RunState.CANCELLED
    assert house.leftovers() == []


def test_two_cancels_in_one_batch_and_a_foreign_one(house):
    from rota.app.errors import Forbidden

    run_id = house.running()
    sent = [house.rota.send(who, Cancel(run_id, grace_s=0.0)) for who in (ANN, BOB, ANN)]
    assert sent[0].result(60).attempt.stop.by == "ann"
    with pytest.raises(Forbidden):
        sent[1].result(60)
    assert sent[2].exception(60) is None or isinstance(sent[2].exception(60), Conflict)
    assert house.wait(run_id).state is RunState.CANCELLED
