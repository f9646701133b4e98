"""Several policies, several shakes, several processes: the same numbers however they are spread."""

from __future__ import annotations

from multiprocessing import active_children

import pytest

from rota.core.node import simulated_cluster
from rota.core.policy import Backfill, Limits, Ordering, Policy
from rota.sim import many
from rota.sim.engine import Stuck
from rota.sim.many import Question, answer
from rota.sim.model import Job

SKIP = Policy(ordering=Ordering.FCFS, backfill=Backfill.SKIP)
SJF = Policy(ordering=Ordering.SJF)
JOBS = tuple(Job(f"j{n}", 30 * n, 100 + 37 * n % 900, 1 + n % 4, f"u{n % 3}") for n in range(60))


def question(shakes: int = 0, policies=(("skip", SKIP), ("sjf", SJF))) -> Question:
    return Question(JOBS, simulated_cluster(1, 4), policies, declared="class", shakes=shakes)


def test_processes_change_nothing_but_the_time_it_takes(monkeypatch):
    monkeypatch.setattr(many, "SMALL", 0)
    shares: list[float] = []
    asked = question(shakes=3)
    alone = answer(asked, 1)
    together = answer(asked, 2, shares.append)
    assert together == alone
    assert shares == sorted(shares) and shares[-1] == 1.0
    for one in alone:
        assert len(one.shaken) == 3
        assert len({run.mean_wait_s for run in one.shaken}) == 3, "each shake is another one"


def test_every_policy_sees_the_same_jobs_and_the_first_schedule_is_of_the_jobs_as_they_are():
    skip, sjf = answer(question(shakes=2), 1)
    assert [job.id for job in skip.result.jobs] == [job.id for job in sjf.result.jobs] == [job.id for job in JOBS]
    assert [job.duration_s for job in skip.result.jobs] == [job.duration_s for job in JOBS]
    assert {job.limit_s for job in skip.result.jobs} == {3600}
    assert skip.measured.starvation is not None
    assert sjf.result.ends != skip.result.ends
    assert skip.runs == skip.shaken and answer(question(), 1)[0].runs[0].jobs == 60


def test_the_same_chance_gives_the_same_numbers():
    first, again = (answer(question(shakes=1), 1)[0].shaken for _ in range(2))
    assert first == again


@pytest.mark.parametrize("processes", [1, 2])
def test_a_policy_that_can_never_start_a_job_is_an_error_and_leaves_no_process(monkeypatch, processes):
    monkeypatch.setattr(many, "SMALL", 0)
    nothing = Policy(ordering=Ordering.FCFS, limits=Limits(gpus=1))
    with pytest.raises(Stuck, match="limits of the policy"):
        answer(question(policies=(("sjf", SJF), ("nothing", nothing))), processes)
    assert active_children() == []


def test_how_far_it_is():
    shares: list[float] = []
    answer(question(), 1, shares.append)
    assert shares == sorted(shares)
    assert 0 <= shares[0] < 0.1 and shares[-1] == 1.0
