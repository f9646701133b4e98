"""Measures against schedules small enough to be reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.core.node import simulated_cluster
from rota.sim.engine import simulate
from rota.sim.fairturn import STRICT, fair_turns, fluid_turns
from rota.sim.measure import jain, measure, quantile
from rota.sim.model import Job, Result, Segment

# On one node of 4: a runs 0-1000 on 2 GPUs, stopped at 200, back at 500 with 60 s of restart; b 200-500 on 3; c waits
# from 100 until 1360, when a is done.
JOBS = (
    Job("a", 0, 1000, 2, "ann", limit_s=3600),
    Job("c", 100, 40, 4, "ben"),
    Job("b", 200, 300, 3, "ben", limit_s=3601),
)
RESULT = Result(
    jobs=JOBS,
    gpus=4,
    segments=(
        Segment(0, 1, 0, 200, (("node1", 2),)),
        Segment(2, 1, 200, 500, (("node1", 3),)),
        Segment(0, 2, 500, 1360, (("node1", 2),)),
        Segment(1, 1, 1360, 1400, (("node1", 4),)),
    ),
    ends=(1360, 1400, 500),
    stops=(1, 0, 0),
    preempt_cost_s=60,
)


def test_waits_of_three_jobs() -> None:
    found = measure(RESULT)
    assert RESULT.waits == (360, 1260, 0)
    assert (found.jobs, found.preemptions) == (3, 1)
    assert found.mean_wait_s == 540
    assert (found.p50_wait_s, found.p95_wait_s, found.p99_wait_s, found.max_wait_s) == (360, 1260, 1260, 1260)
    assert found.share_over_5min == pytest.approx(2 / 3)
    assert found.short_mean_wait_s == 360  # only a declared an hour or less
    assert found.long_mean_wait_s == 360  # only a ran for more than ten minutes
    assert found.mean_jct_s == (1360 + 1300 + 300) / 3


def test_busy_while_there_is_enough_to_do() -> None:
    """Demand is 2 until 100, then 6, 9 from 200, 6 from 500, 4 from 1360. Useful GPUs from 100: 2 for 100 s, 3 for
    300 s, none for 60 s, 2 for 800 s, 4 for 40 s."""
    found = measure(RESULT)
    in_full = 2 * 100 + 3 * 300 + 0 * 60 + 2 * 800 + 4 * 40
    assert found.busy_when_full == pytest.approx(in_full / (4 * 1300))
    assert found.utilisation == pytest.approx((2 * 1000 + 3 * 300 + 4 * 40) / (4 * 1400))


def test_between_users() -> None:
    found = measure(RESULT)
    assert found.user_mean_wait_s == {"ann": 360, "ben": 630}
    assert found.worst_user_over_mean == pytest.approx(630 / 540)
    assert found.jain == pytest.approx(990**2 / (2 * (360**2 + 630**2)))
    ann, ben = 1360 / 1000, (1300 / 600 + 300 / 600) / 2
    assert found.jain_slowdown == pytest.approx((ann + ben) ** 2 / (2 * (ann**2 + ben**2)))


def test_wide_gangs_are_those_of_8_gpus_or_more() -> None:
    assert measure(RESULT).wide_mean_wait_s is None
    wide = replace(RESULT, jobs=(replace(JOBS[0], gpus=8), replace(JOBS[1], gpus=16), JOBS[2]), gpus=16)
    found = measure(wide)
    assert (found.wide_jobs, found.wide_mean_wait_s, found.wide_p99_wait_s) == (2, 810, 1260)


def test_starvation_names_the_job_that_waited_most_beyond_its_turn() -> None:
    found = measure(RESULT, turns=[1000.0, 630.0, 600.0])
    assert (found.starvation, found.starved_job) == (2.0, "c")
    assert measure(RESULT).starvation is None


def test_nobody_declares_and_nothing_is_ever_full() -> None:
    alone = simulate([Job("a", 7, 100, 1)], simulated_cluster(1, 4), STRICT)
    found = measure(alone, turns=[700.0])
    assert (found.busy_when_full, found.short_mean_wait_s, found.long_mean_wait_s) == (None, None, None)
    assert (found.mean_wait_s, found.worst_user_over_mean, found.jain, found.starvation) == (0, 1, 1, 0)
    assert found.utilisation == 0.25  # from its submit on


def test_no_jobs_at_all() -> None:
    found = measure(Result((), 4, (), (), ()), turns=[])
    assert (found.jobs, found.mean_wait_s, found.utilisation, found.busy_when_full) == (0, 0, 0, None)


def test_quantiles_are_waits_that_somebody_had() -> None:
    ranked = [float(n) for n in range(1, 101)]
    assert [quantile(ranked, share) for share in (0.5, 0.95, 0.99)] == [50, 95, 99]
    assert quantile(ranked[:1], 0.5) == 1
    assert quantile(ranked[:3], 0.95) == 3
    assert quantile([], 0.5) is None


def test_jains_index() -> None:
    assert jain([5, 5, 5]) == 1
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain([0, 0]) == jain([]) == 1


def test_fair_turns_by_hand() -> None:
    """Strictly in order on 4 GPUs: a 0-1000 on 3, b needs 2 and waits until 1000, c (1 GPU) behind it as well."""
    nodes = simulated_cluster(1, 4)
    jobs = [
        Job("a", 0, 1000, 3),
        Job("b", 400, 500, 2),
        Job("c", 600, 900, 1),
        Job("d", 1200, 10, 4),
        Job("e", 9000, 1, 1),
    ]
    assert fair_turns(jobs, 4, nodes) == [
        0 + 1000,
        3 * 600 / 4 + 600,  # of a 600 s are left
        (3 * 400 + 2 * 500) / 4 + 900,  # of a 400 s, and all of b
        (2 * 300 + 1 * 700) / 4 + 600,  # b and c have run for 200 s
        0 + 600,
    ]


def test_fluid_turns_by_hand() -> None:
    """As above, worked off with all 4 GPUs from the first second: a's 3000 are done at 750, then b's 1000."""
    jobs = [Job("a", 0, 1000, 3), Job("b", 400, 500, 2), Job("c", 600, 900, 1), Job("d", 9000, 10, 4)]
    assert fluid_turns(jobs, 4) == [1000, (3000 - 1600) / 4 + 600, (3000 + 1000 - 2400) / 4 + 900, 600]


def test_fair_turns_are_in_the_order_of_submits_and_count_who_came_in_the_same_second() -> None:
    nodes = simulated_cluster(1, 1)
    jobs = [Job("late", 50, 700, 1), Job("first", 0, 100, 1), Job("second", 0, 0, 1), Job("third", 0, 10, 1)]
    assert fair_turns(jobs, 1, nodes) == [600, 700, 700, 760]
