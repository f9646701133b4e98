"""A more important run takes the place of one that said it may be stopped, and that one goes on later."""

from __future__ import annotations

import sys

import pytest

from rota.app import loop as loop_module
from rota.app.commands import Cancel, Submit
from rota.core import events as e
from rota.core.run import Cause, RunState
from tests.app.house import ANN, BOB, House, until, with_policy

JOB = """
import os, signal, sys, time
where = os.path.join(os.environ["ROTA_CHECKPOINT_DIR"], "step")
if os.path.exists(where):
    print("resumed at", open(where).read(), "in attempt", os.environ["ROTA_ATTEMPT"], flush=True)
    sys.exit(0)
def save(number, frame):
    with open(where, "w") as file:
        file.write("41")
    print("saved on signal", number, flush=True)
    sys.exit(0)
signal.signal(int(sys.argv[1]), save)
os.write(1, b"ready\\n")  # not by print, which may not be entered twice: the signal may come inside it
while True:
    time.sleep(0.01)  # briefly: a signal just before the call runs its handler only after it
"""
STUBBORN = "trap '' TERM USR1; echo ready; while :; do sleep 1000; done"


def victim(house: House, signum: int = 15) -> str:
    argv = (sys.executable, "-ISc", JOB, str(signum))
    run_id = house.submit(argv, 4, priority=1, preemptible=True, checkpoint_signal=signum, grace_s=300.0)
    until(lambda: "ready" in house.output(run_id), "the job has set its trap")
    return house.in_state(run_id, RunState.RUNNING)


@pytest.mark.parametrize("signum", [15, 10])
def test_a_preempted_run_saves_gives_way_and_resumes(build, signum):
    house = build(1, 4).open()
    with_policy(house, preemption=True)
    first = victim(house, signum)
    important, gate = house.gated(4, BOB, priority=3)
    house.in_state(important, RunState.RUNNING)
    stop = house.events(e.StopRequested, first)[0]
    assert (stop.cause, stop.signal, stop.for_run) == (Cause.PREEMPTED, signum, important)
    waiting = house.run(first)
    assert (waiting.state, waiting.why) == (RunState.QUEUED, f"preempted for {important}")
    assert waiting.past[-1].exit.cause is Cause.PREEMPTED
    assert house.output(first, 1) == f"ready\nsaved on signal {signum}\n"
    gate.open()
    run = house.wait(first)
    assert (run.state, run.attempts_made, run.retries) == (RunState.SUCCEEDED, 2, 0), "being preempted is no retry"
    assert house.output(first, 2) == "resumed at 41 in attempt 2\n"
    assert house.starts() == [first, important, first]


def test_nobody_is_preempted_who_did_not_say_so_or_is_as_important(house):
    with_policy(house, preemption=True)
    runs = [house.running(4, priority=1), house.running(4, priority=3, preemptible=True)]
    waiting = house.submit("true", 4, priority=3)
    assert house.rota.explain(waiting).reasons
    assert house.events(e.StopRequested) == []
    assert all(house.run(run_id).state is RunState.RUNNING for run_id in runs)


def test_preemption_can_be_switched_off(house):
    with_policy(house, preemption=False)
    for _ in range(2):
        house.running(4, priority=1, preemptible=True)
    waiting = house.submit("true", 4, priority=4)
    assert house.rota.explain(waiting).reasons
    assert house.events(e.StopRequested) == []


def test_a_cancel_outweighs_a_preemption_under_way(build):
    house = build(1, 4).open()
    with_policy(house, preemption=True)
    run_id = house.submit(STUBBORN, 4, priority=1, preemptible=True, grace_s=300.0)
    until(lambda: "ready" in house.output(run_id), "the job has set its trap")
    important = house.submit("true", 4, BOB, priority=3)
    until(lambda: house.events(e.StopRequested, run_id), "it is being preempted")
    house.do(Cancel(run_id, grace_s=0.0), ANN)
    assert house.wait(run_id).state is RunState.CANCELLED, "nobody wants it back"
    assert house.wait(important).state is RunState.SUCCEEDED


def test_after_a_preemption_the_rest_of_the_queue_is_looked_at_at_once(build, monkeypatch):
    """The pass that preempts ends early. Nothing else wakes the loop here: no probe, no reconcile, no end."""
    monkeypatch.setattr(loop_module, "RECONCILE_S", 1000.0)
    house = build(2, 4)
    house.settings = type(house.settings)(house.data, simulated=(2, 4), probe_every_s=1000.0)
    house.open()
    with_policy(house, preemption=True)
    stubborn = house.submit(STUBBORN, 4, priority=1, preemptible=True, grace_s=300.0, estimate_s=10.0)
    until(lambda: "ready" in house.output(stubborn), "the job has set its trap")
    house.running(3)
    house.in_state(stubborn, RunState.RUNNING)
    with house.occupied():
        wide = house.rota.send(ANN, Submit(house.spec("true", 4, priority=4)))
        small = house.rota.send(ANN, Submit(house.spec("true", 1, priority=2, time_limit_s=1000.0)))
    wide_id, small_id = wide.result(60).id, small.result(60).id
    until(lambda: house.store.attempts(small_id), "the small run has been started without waiting for the victim", 30)
    assert house.run(wide_id).state is RunState.QUEUED
    assert house.run(stubborn).attempt.stop.for_run == wide_id
