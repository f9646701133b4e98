"""The schedule file, checked by somebody who knows only the trace and the cluster."""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from rota.core.node import simulated_cluster
from rota.core.presets import NAMES
from rota.sim.engine import simulate
from rota.sim.model import Job
from rota.sim.policyfile import read_policy
from rota.sim.schedule import write_schedule

COST_S = 45


def crowd(seed: int) -> list[Job]:
    rnd = random.Random(seed)
    return [
        Job(
            id=f"job,{n}",  # an id may hold what CSV has to quote
            submit_s=rnd.randrange(20_000),
            duration_s=rnd.choice([5, 70, 600, 4000]),
            gpus=rnd.choice([1, 1, 2, 4, 8, 12]),
            user=rnd.choice(["ann", "ben"]),
            limit_s=rnd.choice([None, 600, 3600]),
            priority=rnd.choice([1, 2, 3, 4]),
            preemptible=rnd.random() < 0.8,
        )
        for n in range(120)
    ]


@pytest.mark.parametrize("name", [*NAMES, "stops"])
def test_nothing_overlaps_and_all_work_is_done(tmp_path: Path, name: str) -> None:
    (tmp_path / "stops.toml").write_text('base = "priority"\npreemption = true\n')
    _, policy = read_policy(name if name in NAMES else str(tmp_path / "stops.toml"))
    jobs = {job.id: job for job in crowd(1)}
    result = simulate(jobs.values(), simulated_cluster(2, 8), policy, preempt_cost_s=COST_S)
    write_schedule(result, tmp_path / "out.csv")
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["job_id", "attempt", "start_s", "end_s", "placement"]
    assert [int(row["start_s"]) for row in rows] == sorted(int(row["start_s"]) for row in rows)

    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)  # node -> (when, GPUs)
    attempts: dict[str, list[tuple[int, int]]] = defaultdict(list)  # job -> (start, end)
    for row in rows:
        job, start, end = jobs[row["job_id"]], int(row["start_s"]), int(row["end_s"])
        parts = [(node, int(count)) for node, count in (part.split(":") for part in row["placement"].split(";"))]
        assert sum(count for _, count in parts) == job.gpus
        assert len(parts) == -(-job.gpus // 8)
        for node, count in parts:
            changes[node] += [(start, count), (end, -count)]
        attempts[job.id].append((start, end))
        assert int(row["attempt"]) == len(attempts[job.id])
    for node, moves in changes.items():
        held = 0
        for _, count in sorted(moves):  # in one second, GPUs are given back before they are given out
            held += count
            assert 0 <= held <= 8, node
    assert attempts.keys() == jobs.keys()
    for job in jobs.values():
        spans = attempts[job.id]
        assert spans[0][0] >= job.submit_s
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert job.preemptible or len(spans) == 1
        worked = [end - start - (COST_S if n else 0) for n, (start, end) in enumerate(spans)]
        assert sum(max(0, work) for work in worked) == job.duration_s
    if name == "stops":
        assert sum(result.stops) > 10
