"""Run it again? What was not the command's fault is, what was is not, and each attempt is counted once."""

from __future__ import annotations

import os
import signal
import time

import pytest

from rota.app.commands import Cancel
from rota.core import events as e
from rota.core.run import Cause, RunState
from tests.app.house import ANN, House, alive, until, with_policy


@pytest.fixture
def quick(house: House) -> House:
    """Back-offs of a moment."""
    with_policy(house, retry_base_s=0.01, retry_cap_s=0.02)
    return house


def lose(house: House, run_id: str) -> None:
    """Kill the supervisor of a running run."""
    os.kill(house.shim_of(run_id), signal.SIGKILL)


def test_a_lost_attempt_is_followed_by_a_new_one(quick):
    mark = quick.where / "second"
    line = f"echo attempt $ROTA_ATTEMPT $SLURM_RESTART_COUNT; [ -e {mark} ] || {{ touch {mark}; exec sleep 100000; }}"
    run_id = quick.submit(line, 2)
    quick.in_state(run_id, RunState.RUNNING)
    until(mark.exists, "the first attempt is at work")
    pid = quick.run(run_id).attempt.pid
    lose(quick, run_id)
    run = quick.wait(run_id)
    assert (run.state, run.attempts_made, run.retries) == (RunState.SUCCEEDED, 2, 1)
    assert [past.exit.cause for past in run.past] == [Cause.LOST, Cause.EXITED]
    assert not alive(pid), "the old one is known dead before the new one begins"
    assert quick.output(run_id, 1) == "attempt 1 0\n"
    assert quick.output(run_id, 2) == "attempt 2 1\n"
    ended, _ = quick.events(e.AttemptEnded, run_id)
    assert ended.counts
    assert ended.not_before > ended.at, "after a back-off"
    second = quick.events(e.AttemptPlanned, run_id)[1]
    assert second.at >= ended.not_before


def test_retries_are_counted_and_end(quick):
    run_id = quick.sleeper(max_retries=2)
    for number in (1, 2, 3):
        until(lambda: (run := quick.run(run_id)).attempts_made == number and run.state is RunState.RUNNING, "runs")  # noqa: B023
        lose(quick, run_id)
    run = quick.wait(run_id)
    assert (run.state, run.attempts_made, run.retries) == (RunState.LOST, 3, 2)
    assert "2 of 2 retries used" in run.why


def test_without_retries_a_lost_run_is_lost(quick):
    run_id = quick.running(max_retries=0)
    lose(quick, run_id)
    assert quick.wait(run_id).state is RunState.LOST


def test_one_whose_supervisor_dies_at_its_time_limit_has_had_its_time(quick):
    """Else a job that can end its supervisor would have its limit once more, again and again."""
    mark = quick.where / "asked"
    line = f"trap 'touch {mark}' TERM; while :; do sleep 0.1; done"
    run_id = quick.submit(line, time_limit_s=5.0, grace_s=30.0, max_retries=3)  # by then it has its trap
    until(mark.exists, "it is asked to end at its limit")
    lose(quick, run_id)
    run = quick.wait(run_id)
    assert (run.state, run.attempts_made) == (RunState.FAILED, 1), run.why
    assert "time limit of 5 s reached" in run.why


def test_one_that_died_while_no_server_watched_may_have_died_early(quick):
    """A server that comes back after the limit cannot tell when the attempt died: it was lost, and is tried again."""
    mark = quick.where / "second"
    line = f"[ -e {mark} ] || {{ touch {mark}; exec sleep 100000; }}"
    run_id = quick.submit(line, time_limit_s=10.0, max_retries=3)
    quick.in_state(run_id, RunState.RUNNING)
    until(mark.exists, "the first attempt is at work")
    began, shim = time.monotonic(), quick.shim_of(run_id)
    quick.close()
    os.kill(shim, signal.SIGKILL)
    until(lambda: time.monotonic() > began + 10.5, "its limit has passed", 60.0)
    run = quick.open().wait(run_id)
    assert (run.state, run.attempts_made, run.retries) == (RunState.SUCCEEDED, 2, 1), run.why


def test_retries_can_be_switched_off(quick):
    with_policy(quick, auto_retry=False)
    run_id = quick.running()
    lose(quick, run_id)
    run = quick.wait(run_id)
    assert (run.state, "switched off" in run.why) == (RunState.LOST, True)


def test_a_commands_own_failure_is_retried_only_when_asked_for(quick):
    assert quick.wait(quick.submit("exit 9")).attempts_made == 1
    run = quick.wait(quick.submit("exit 9", retry_failures=True, max_retries=2))
    assert (run.state, run.attempts_made, run.retries) == (RunState.FAILED, 3, 2)
    assert [past.exit.code for past in run.past] == [9, 9, 9]
    count = quick.where / "n"
    line = f"echo x >> {count}; [ $(wc -l < {count}) = 3 ]"
    run = quick.wait(quick.submit(line, retry_failures=True))
    assert (run.state, run.attempts_made) == (RunState.SUCCEEDED, 3)


def test_what_cannot_be_launched_is_not_tried_again(quick):
    run = quick.wait(quick.submit(("no-such-command",), retry_failures=True))
    assert (run.state, run.attempts_made) == (RunState.FAILED, 1)


def test_a_run_that_backs_off_can_be_explained_held_and_cancelled(house):
    with_policy(house, retry_base_s=1000.0, retry_cap_s=1000.0)
    run_id = house.running()
    lose(house, run_id)
    house.in_state(run_id, RunState.QUEUED)
    (reason,) = house.rota.explain(run_id).reasons
    assert reason.code == "backoff"
    assert reason.until > house.rota.ask(lambda state, now: now) + 500
    assert house.free() == 8
    assert house.do(Cancel(run_id), ANN).state is RunState.CANCELLED


def test_a_cancel_during_the_loss_wins(quick):
    run_id = quick.running()
    shim = quick.shim_of(run_id)
    os.kill(shim, signal.SIGSTOP)
    quick.do(Cancel(run_id), ANN)
    os.kill(shim, signal.SIGKILL)
    run = quick.wait(run_id)
    assert (run.state, run.attempts_made) == (RunState.CANCELLED, 1)


def test_all_supervisors_die_at_once(quick):
    runs = [quick.running() for _ in range(6)]
    for run_id in runs:
        lose(quick, run_id)
    for run_id in runs:
        until(lambda: (r := quick.run(run_id)).attempts_made == 2 and r.state is RunState.RUNNING, "again")  # noqa: B023
    assert quick.free() == 2
