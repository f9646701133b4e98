"""What the simulator says is what happens: jobs as real processes on a real server wait as long as simulated ones."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from rota.core.presets import named
from rota.sim.declare import Declared, declare
from rota.sim.model import Job
from tests.bench.replay import CLUSTER, COST_S, busiest_of, replay, told
from tests.replay.measure import busiest, of_simulation, wait_of
from tests.replay.play import Span

SPEED = 160.0
LATE_S = round(0.05 * SPEED)  # a submit, a start or an end may be seen 50 ms late on a busy machine of two cores
RIPPLES = 12


def busy_hours(count: int, seed: int) -> list[Job]:
    """Short ones by the minute, wide and long ones between them, and more of all than 16 GPUs can do at once."""
    chance = random.Random(seed)
    jobs, at = [], 0
    for number in range(count):
        at += round(chance.expovariate(1 / 30))
        work = chance.choice([60, 90, 150, 300, 600, 1500]) * chance.uniform(0.7, 1.3)
        gpus = chance.choice([1, 1, 1, 2, 2, 4, 8])
        jobs.append(Job(str(number), at, round(work), gpus, chance.choice(["ann", "ben", "cid"])))
    return declare(jobs, Declared.CLASS, seed)


def rippled(jobs: list[Job], seed: int) -> list[Job]:
    """The same, each of them a little late: what a real server and real processes do to them."""
    chance = random.Random(seed)
    late = [(chance.randint(0, LATE_S), chance.randint(0, LATE_S)) for _ in jobs]
    pairs = zip(jobs, late, strict=True)
    return [replace(job, submit_s=job.submit_s + a, duration_s=job.duration_s + b) for job, (a, b) in pairs]


@pytest.mark.soak  # what is late on a busy machine moves it by more than it should show
def test_a_replay_of_busy_hours_waits_as_long_as_its_simulation():
    """So few jobs make a schedule that turns on a second here or there, so it is held against several simulations of
    them with as much lateness as a machine adds. A day of a trace is held against one: see the soak."""
    jobs = busy_hours(70, 2)
    live, simulated = replay(jobs, "auto", SPEED, None)
    print(told(live, simulated))
    assert live.done == len(jobs)
    assert simulated.stops >= 10, "this workload is there to see jobs make way"
    assert live.stops >= simulated.stops // 2
    policy = named("auto")
    means = [of_simulation(rippled(jobs, n), CLUSTER, policy, COST_S, None).mean for n in range(RIPPLES)]
    means.append(simulated.mean)
    assert 0.9 * min(means) <= live.mean <= 1.1 * max(means), told(live, simulated)


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
