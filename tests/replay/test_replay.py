"""What the simulator says is what happens: jobs as real processes on a real server wait as long as simulated ones."""

from __future__ import annotations

import os
import random

import pytest

from rota.sim.declare import Declared, declare
from rota.sim.model import Job
from tests.bench.replay import busiest_of, replay, told
from tests.replay.measure import busiest, wait_of
from tests.replay.play import Span

SPEED = 300.0
# Real seconds that a submit, a start, a stop or an end may take on a busy machine of two cores, each at SPEED; a stop
# adds an end and a start.
SLOW_S = 0.05


def busy_hours(count: int, seed: int) -> list[Job]:
    """Short ones by the minute, wide and long ones between them, and more of all than 16 GPUs can do at once."""
    chance = random.Random(seed)
    jobs, at = [], 0
    for number in range(count):
        at += round(chance.expovariate(1 / 30))
        gpus = chance.choice([1, 1, 1, 2, 2, 4, 8])
        work = chance.choice([30, 45, 60, 90, 150, 300, 600, 1500])
        user = chance.choice(["ann", "ben", "cid"])
        jobs.append(Job(str(number), at, round(work * chance.uniform(0.7, 1.3)), gpus, user))
    return declare(jobs, Declared.CLASS, seed)


def test_a_replay_of_busy_hours_waits_as_long_as_its_simulation():
    jobs = busy_hours(100, 3)
    live, simulated = replay(jobs, "auto", SPEED, None)
    print(told(live, simulated))
    assert live.done == len(jobs)
    assert simulated.stops >= 10, "this workload is there to see jobs make way"
    assert live.stops >= simulated.stops // 2
    slow_s = SLOW_S * SPEED * (1 + live.stops / len(jobs))
    assert abs(live.mean - simulated.mean) <= 0.1 * simulated.mean + slow_s, told(live, simulated)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_the_busiest_day_of_a_trace_waits_within_a_twentieth_of_its_simulation():
    trace = os.environ.get("ROTA_TRACES")
    if not trace:
        pytest.skip("ROTA_TRACES names no trace: give it the path of a CSV file as `rota simulate` reads it")
    live, simulated = replay(busiest_of(trace, 24.0), "auto", 60.0, 24 * 3600.0)
    assert live.mean == pytest.approx(simulated.mean, rel=0.05), told(live, simulated)


def test_the_busiest_hours_are_those_in_which_most_work_is_submitted():
    jobs = [Job("a", 0, 100, 1), Job("b", 50, 10, 8), Job("c", 90, 100, 2), Job("d", 120, 150, 1)]
    assert busiest(jobs, 100) == 50
    assert busiest(jobs, 60) == 90
    assert busiest(jobs, 1000) == 0


def test_of_a_job_that_is_not_done_what_was_not_its_work_is_its_wait():
    job = Job("a", 100, 1000, 1)
    assert wait_of(job, 1500, [], 60, None) == 400
    stopped = [Span(1, 150, 250), Span(2, 300, None)]  # 100 s of work; then 60 s of restarting and 40 s of work
    assert wait_of(job, None, stopped, 60, 400) == 300 - 140
