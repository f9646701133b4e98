"""Reserved GPUs: nobody is stopped for room that another may not use; a promise stays on GPUs that one may have."""

from __future__ import annotations

from dataclasses import replace

from rota.core import events as e
from rota.core.policy import Backfill, Ordering, Policy
from rota.core.reduce import reduce
from rota.core.reservation import Reservation
from rota.core.resources import Slice
from tests.unit.core.kit import Lab, node

HOUR = 3600.0


def keep(lab: Lab, gpus: int, start: float, end: float, name: str = "kept") -> None:
    made = Reservation(name, "eve", "", start, end, (Slice("a", gpus),), 0.0)
    reduce(lab.state, e.ReservationMade(at=lab.state.at, reservation=made))


def test_a_filler_is_not_killed_for_one_that_may_not_have_its_gpu():
    """One GPU, reserved from an hour on. A filler uses the time until then; a run of two hours may not, and waits."""
    lab = Lab(node("a", 1), policy=Policy())
    keep(lab, 0b1, HOUR, 2 * HOUR)
    filler = lab.submit(1, takes=600, time_limit_s=600.0, preemptible=True, filler=True)
    assert [start.run_id for start in lab.step().starts] == [filler]
    lab.now = 1.0
    lab.submit(1, takes=2 * HOUR, time_limit_s=2 * HOUR)
    for _ in range(5):
        plan = lab.step()
        assert (plan.starts, plan.preempts) == ((), ())


def test_work_in_its_own_reservation_is_not_stopped_for_an_outsider():
    lab = Lab(node("a", 1), policy=Policy())
    keep(lab, 0b1, 0.0, 10 * HOUR)
    inside = lab.submit(1, takes=HOUR, user="eve", preemptible=True, saves=True, priority=1, reservation="kept")
    assert [start.run_id for start in lab.step().starts] == [inside]
    lab.now = 100.0
    lab.submit(1, takes=60, priority=4)
    for _ in range(5):
        assert lab.step().preempts == ()


def test_what_begins_stops_each_run_once():
    lab = Lab(node("a", 4), policy=Policy())
    wide = lab.submit(4, takes=9000, preemptible=True, saves=True)
    lab.step()
    keep(lab, 0b11, 100.0, 200.0, "one")
    keep(lab, 0b1100, 100.0, 200.0, "two")
    lab.submit(2, takes=10, priority=4)
    lab.now = 100.0
    assert [victim.run_id for victim in lab.step().preempts] == [wide]


def test_the_promise_to_the_first_is_not_exchanged_for_gpus_that_it_may_not_have():
    """Three GPUs, the second reserved from 5000 on. Who waits for two for hours is promised the first and the third."""
    lab = Lab(node("a", 3), policy=Policy(ordering=Ordering.FCFS, backfill=Backfill.EASY))
    lab.submit(1, takes=4000, time_limit_s=4000.0)
    lab.step()
    keep(lab, 0b10, 5000.0, 90_000.0)
    first = lab.submit(2, takes=9000, time_limit_s=9000.0)
    lab.submit(1, takes=3000, time_limit_s=3000.0)
    lab.submit(1, takes=50_000, time_limit_s=50_000.0)
    lab.until(20_000)
    assert lab.started[first] == [4000]


def test_two_that_were_each_stopped_for_the_other_long_ago_are_no_riddle():
    """Attempts of an older Rota do not say when they were asked to go."""
    lab = Lab(node("a", 2), policy=Policy())
    one = lab.submit(2, takes=500, preemptible=True, saves=True)
    other = lab.submit(2, takes=500, preemptible=True, saves=True)
    lab.step()
    for run_id, whom in ((one, other), (other, one)):
        run = lab.run(run_id)
        assert run.past == () or run.past[-1].stopped_at is None
        past = replace(_past(run_id), for_run=whom)
        lab.state.put(replace(run, past=(past,)))
    lab.until(5000)
    assert lab.all_ended()


def _past(run_id: str):
    from rota.core.run import Cause, Exit, PastAttempt

    return PastAttempt(f"{run_id}-0", 0, (), 0.0, 0.0, 0.0, Exit(Cause.PREEMPTED), 0.0)
