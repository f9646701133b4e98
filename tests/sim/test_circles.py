"""Jobs that may stop one another come to their ends all the same. Each case once went round for ever."""

from __future__ import annotations

import random

import pytest

from rota.core.node import simulated_cluster
from rota.core.presets import NAMES, named
from rota.sim.engine import simulate
from rota.sim.model import Job

ONE = simulated_cluster(1, 4)


@pytest.fixture(autouse=True)
def give_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.sim.engine.IDLE_MOMENTS", 1000)


@pytest.mark.parametrize("name", ["las", "auto", "srtf"])
def test_two_that_have_each_been_stopped_for_the_other(name: str) -> None:
    """b was started for a's sake behind it; when b has to make way in its turn, a's old debt to it is paid."""
    result = simulate([Job("a", 800, 1700, 3, "ann", 3600), Job("b", 900, 3000, 4, "ann", 600)], ONE, named(name))
    assert sum(result.stops) < 10


@pytest.mark.parametrize("name", ["las", "auto", "srtf"])
def test_three_of_different_priority(name: str) -> None:
    jobs = [
        Job("c", 100, 3800, 2, "ann", 600, priority=1),
        Job("a", 1200, 800, 4, "ann", 600),
        Job("b", 1800, 3200, 2, "ann", priority=3),
    ]
    assert sum(simulate(jobs, ONE, named(name)).stops) < 20


def test_who_is_stopped_for_another_does_not_take_its_place_back_at_once() -> None:
    """Among these are one that overran its limit, so that nobody knows when its GPU comes back, and one (b) that may
    not be stopped and so may not pass everybody."""
    jobs = [
        Job("c", 0, 3200, 1, "ann", priority=1),
        Job("d", 500, 1800, 4, "ann", 3600),
        Job("f", 500, 1600, 4, "ann", 3600),
        Job("a", 1300, 2800, 1, "ann", 600),
        Job("e", 1600, 1100, 3, "ann", 600),
        Job("b", 1800, 2400, 3, "ann", 3600, preemptible=False),
    ]
    assert sum(simulate(jobs, ONE, named("auto")).stops) < 30


@pytest.mark.parametrize("name", [name for name in NAMES if named(name).preemption])
def test_small_crowds_of_all_kinds_end(name: str) -> None:
    for seed in range(60):
        rnd = random.Random(seed)
        jobs = [
            Job(
                str(n),
                submit_s=rnd.randrange(30) * 100,
                duration_s=rnd.randrange(1, 40) * 100,
                gpus=rnd.choice([1, 2, 3, 4, 8]),
                user=rnd.choice(["ann", "ben"]),
                limit_s=rnd.choice([None, 600, 3600]),
                priority=rnd.choice([1, 2, 2, 2, 3]),
                preemptible=rnd.random() < 0.7,
            )
            for n in range(rnd.randint(2, 20))
        ]
        result = simulate(jobs, simulated_cluster(2, 4), named(name))
        assert sum(result.stops) < 20 * len(jobs)
