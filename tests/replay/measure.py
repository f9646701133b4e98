"""The waits of a replay beside those of a simulation of the same jobs, by one rule.

wait = completion - submit - duration. Where the replay is cut at some moment, a job that is not done by then has waited
for all of its time since the submit that was not work of its own; the simulation is cut at the same moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rota.core.policy import Policy
from rota.sim.cluster import read_cluster
from rota.sim.engine import simulate
from rota.sim.model import Job
from tests.replay.play import Lived, Span

HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Waits:
    mean: float
    p50: float
    p95: float
    stops: int
    done: int
    each: tuple[float, ...]


def busiest(jobs: Sequence[Job], window_s: int) -> int:
    """When the window begins in which most GPU-seconds are submitted; the first of such. It begins with a submit."""
    best, begins, work, last = -1, 0, 0, 0
    for first in jobs:  # in the order of their submits
        while last < len(jobs) and jobs[last].submit_s < first.submit_s + window_s:
            work += jobs[last].gpus * jobs[last].duration_s
            last += 1
        if work > best:
            best, begins = work, first.submit_s
        work -= first.gpus * first.duration_s
    return begins


def wait_of(job: Job, end_s: float | None, spans: Iterable[Span], cost_s: int, until_s: float | None) -> float:
    if end_s is not None and (until_s is None or end_s <= until_s):
        return end_s - job.submit_s - job.duration_s
    assert until_s is not None, "a job is not done, and nobody said until when"
    useful = 0.0
    for span in spans:
        end = until_s if span.end_s is None else min(span.end_s, until_s)
        useful += max(0.0, end - span.start_s - (cost_s if span.attempt > 1 else 0))
    return until_s - job.submit_s - useful


def of_lives(lives: Sequence[Lived], cost_s: int, until_s: float | None) -> Waits:
    each = [wait_of(life.job, life.end_s, life.spans, cost_s, until_s) for life in lives]
    return _waits(each, sum(life.stops for life in lives), sum(life.end_s is not None for life in lives))


def of_simulation(jobs: Sequence[Job], cluster: str, policy: Policy, cost_s: int, until_s: float | None) -> Waits:
    result = simulate(jobs, read_cluster(cluster), policy, preempt_cost_s=cost_s)
    lives = [Lived(job, end) for job, end in zip(result.jobs, result.ends, strict=True)]
    for segment in sorted(result.segments, key=lambda one: (one.job, one.attempt)):
        if until_s is not None and segment.start_s >= until_s:
            continue
        life = lives[segment.job]
        life.spans.append(Span(segment.attempt, segment.start_s, segment.end_s))
        life.stops += segment.attempt > 1
    if until_s is not None:
        lives = [life for life in lives if life.job.submit_s < until_s]
        for life in lives:
            life.end_s = life.end_s if life.end_s is not None and life.end_s <= until_s else None
    return of_lives(lives, cost_s, until_s)


def _waits(each: Sequence[float], stops: int, done: int) -> Waits:
    ranked = sorted(each)
    count = len(ranked)
    at = [ranked[min(count - 1, int(share * count))] for share in (0.5, 0.95)]
    return Waits(sum(ranked) / count, at[0], at[1], stops, done, tuple(each))
