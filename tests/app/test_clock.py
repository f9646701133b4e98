"""B1, A5: clocks that jump, and a machine that restarted."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from rota.adapters.clock import ManualClock, SystemClock
from rota.core import events as e
from rota.core.run import Cause, RunState
from tests.app.house import BOB, House, alive, until, with_policy

HOUR, DAY = 3600.0, 86400.0
Y2038 = 2**31 + 100.0


class Jumping(SystemClock):
    """Somebody sets the wall clock; durations do not notice."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead

    def set(self, to: float) -> None:
        self.ahead += to - self.now()


@pytest.fixture
def clock() -> Jumping:
    return Jumping()


@pytest.fixture
def jumpy(build, clock) -> House:
    house: House = build()
    house.clock = lambda: clock
    return house.open()


JUMPS = {"+1 h": HOUR, "-1 h": -HOUR, "+1 day": DAY, "-1 day": -DAY, "2038": None}


@pytest.mark.parametrize("jump", JUMPS)
def test_a_jump_changes_neither_order_nor_limits_nor_accounts(jumpy, clock, jump):
    running, gate = jumpy.gated(8, time_limit_s=1800.0)
    jumpy.in_state(running, RunState.RUNNING)
    before = [jumpy.submit("true", 8) for _ in range(3)]
    begun, at = jumpy.events(e.AttemptPlanned, running)[0].tick, jumpy.run(running).submitted_at
    by = JUMPS[jump]
    clock.set(Y2038 if by is None else clock.now() + by)
    after = [jumpy.submit("true", 8) for _ in range(3)]
    assert jumpy.run(running).state is RunState.RUNNING, "no time limit fires early"
    assert jumpy.run(running).attempt.stop is None
    gate.open(2)
    run = jumpy.wait(running)
    assert run.state is RunState.SUCCEEDED
    assert 0 < run.past[-1].gpu_s <= 8 * (clock.tick() - begun)
    jumpy.wait_all([*before, *after])
    assert jumpy.starts() == [running, *before, *after], "first come, first served"
    for stored in map(jumpy.run, [running, *before, *after]):
        (past,) = stored.past
        assert at <= stored.submitted_at <= past.planned_at <= past.ended_at == stored.ended_at
        assert past.gpu_s >= 0
    times = [stored.event.at for stored in jumpy.store.events(0, 10_000)]
    assert times == sorted(times), "events never go back in time"


def test_many_jumps_to_and_fro(jumpy, clock):
    begun = clock.tick()
    runs = []
    for number in range(40):
        runs.append(jumpy.submit("true", number % 5))
        clock.ahead += (HOUR, -HOUR, DAY, -DAY, -3 * HOUR, 2 * HOUR)[number % 6]
    done = jumpy.wait_all(runs)
    assert {run.state for run in done} == {RunState.SUCCEEDED}
    spent = clock.tick() - begun
    for run in done:
        assert run.submitted_at <= run.past[0].planned_at <= run.ended_at
        assert 0 <= run.past[0].gpu_s <= run.spec.request.gpus * spent


def test_a_time_limit_is_measured_in_real_seconds(jumpy, clock):
    run_id = jumpy.sleeper(time_limit_s=1.0, grace_s=0.0)
    jumpy.in_state(run_id, RunState.RUNNING, RunState.FAILED)  # a slow machine may see only its end
    clock.ahead -= DAY
    run = jumpy.wait(run_id)
    assert run.why == "time limit of 1 s reached"
    past = run.past[-1].exit
    assert past.ended_tick - past.started_tick >= 1.0


def test_a_clock_set_back_between_two_starts(jumpy, clock):
    held = jumpy.submit("true", held=True)
    running = jumpy.running(2)
    jumpy.close()
    clock.ahead -= DAY
    jumpy.open()
    assert jumpy.run(running).state is RunState.RUNNING
    assert jumpy.run(held).state is RunState.HELD
    run = jumpy.wait(jumpy.submit("true"))
    assert run.state is RunState.SUCCEEDED
    assert run.submitted_at >= jumpy.run(held).submitted_at


def test_a_start_after_one_with_a_clock_that_was_ahead_says_so(jumpy, clock, caplog):
    """The time on record does not go back: for as long as the clock was ahead, everything is dated so."""
    assert jumpy.rota.warnings() == ()
    jumpy.close()
    clock.ahead += 400 * DAY
    jumpy.open()
    assert jumpy.rota.warnings() == (), "a clock that is set forward is believed: nobody was there for a year, perhaps"
    jumpy.close()
    clock.ahead -= 400 * DAY
    caplog.clear()
    jumpy.open()
    (warning,) = jumpy.rota.warnings()
    assert "the server's time is 400 d" in warning
    assert warning in caplog.messages


def test_a_clock_set_forward_does_not_end_reservations_or_runs(jumpy, clock):
    running = jumpy.running(8, estimate_s=60.0)
    waiting = jumpy.submit("true", 4)
    clock.ahead += DAY
    assert jumpy.rota.explain(waiting).reasons[0].code == "resources"
    assert jumpy.rota.eta(waiting) is not None
    assert jumpy.run(running).state is RunState.RUNNING


# -- the machine restarted --------------------------------------------------------------------------------------------


def crash(house: House, *runs: str) -> None:
    """What a power cut does to a running attempt, as far as a test can: all its processes gone at once, and records
    of another boot. (The server is closed already.)"""
    for run_id in runs:
        attempt = f"{run_id}-1"
        record = json.loads((house.data / "attempts" / attempt / "pid").read_text())
        os.kill(record["pid"], signal.SIGSTOP)
        for pid in (*record["tasks"], record["pid"]):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in (*record["tasks"], record["pid"])), "all are gone")  # noqa: B023
        for name in ("lock", "pid"):
            with open(house.data / "attempts" / attempt / name, "r+") as file:
                content = json.load(file)
                file.seek(0)
                file.truncate()
                json.dump({**content, "boot_id": "an older boot"}, file)


@pytest.fixture
def manual() -> ManualClock:
    return ManualClock(now=time.time(), tick=1e9, boot_id="one")


@pytest.fixture
def machine(build, manual) -> House:
    house: House = build()
    house.clock = lambda: manual
    return house.open()


def test_after_a_reboot_running_is_lost_and_tried_again_queued_is_intact(machine, manual):
    with_policy(machine, retry_base_s=50.0, retry_cap_s=50.0)
    again = machine.running(3)
    once = machine.running(1, max_retries=0)
    big = machine.running(4, BOB)
    queued = [machine.submit("echo ran", 2) for _ in range(2)]
    held = machine.submit("true", held=True)
    manual.advance(20.0)
    machine.submit("true", held=True)  # the last thing that was recorded before the lights went out
    manual.advance(5.0)
    machine.close()
    crash(machine, again, once, big)
    manual.advance(300.0)
    manual.reboot("two", tick=12.0)
    machine.open()
    assert machine.wait(once).state is RunState.LOST
    for run_id, gpus in ((again, 3), (once, 1), (big, 4)):
        (past,) = machine.store.attempts(run_id)
        assert past.exit.cause is Cause.LOST
        assert past.gpu_s == pytest.approx(gpus * 20.0), "held until the last thing we know, in seconds that existed"
    assert machine.run(again).state is RunState.QUEUED
    assert machine.run(held).state is RunState.HELD
    assert {run.state for run in machine.wait_all(queued)} == {RunState.SUCCEEDED}
    manual.advance(100.0)
    machine.rota.ask(lambda state, now: None)  # time moved by hand wakes nobody
    for run_id in (again, big):
        until(lambda: machine.run(run_id).attempts_made == 2, "a new attempt")  # noqa: B023
    assert sorted(machine.starts()) == sorted([again, again, once, big, big, *queued]), "nothing was launched twice"


def test_an_end_recorded_before_the_reboot_counts_as_it_was(machine, manual):
    run_id, gate = machine.gated(2, after="exit 3")
    attempt = machine.run(machine.in_state(run_id, RunState.RUNNING)).attempt
    machine.close()
    gate.open()
    exit_file = machine.data / "attempts" / attempt.id / "exit"
    until(exit_file.exists, "its end is recorded")
    record = json.loads(exit_file.read_text())
    exit_file.write_text(json.dumps({**record, "ended_tick": attempt.planned_tick + 30.0}))
    manual.advance(1000.0)
    manual.reboot("two", tick=12.0)
    machine.open()
    run = machine.wait(run_id)
    assert (run.state, run.past[-1].exit.code) == (RunState.FAILED, 3)
    assert run.past[-1].gpu_s == pytest.approx(60.0)
    assert run.ended_at == pytest.approx(attempt.planned_at + 30.0), "and not when the server was back"


def test_an_attempt_that_was_never_claimed_before_the_reboot_is_not_begun_under_its_old_id(machine, manual):
    from unittest.mock import patch

    from rota.adapters.backends.local import LocalBackend

    with_policy(machine, retry_base_s=0.0, retry_cap_s=0.0)
    with patch.object(LocalBackend, "launch", lambda self, order: None):
        run_id = machine.submit("echo once $ROTA_ATTEMPT")
        machine.close()
    manual.reboot("two")
    machine.open()
    run = machine.wait(run_id)
    assert (run.state, run.attempts_made) == (RunState.SUCCEEDED, 2)
    assert machine.output(run_id) == "once 2\n"
    assert machine.output(run_id, 1) == ""


def test_the_same_boot_is_no_reboot(machine, manual):
    run_id = machine.running(2)
    manual.advance(10.0)
    machine.reopen()
    assert machine.run(run_id).state is RunState.RUNNING
