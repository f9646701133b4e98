"""measure: what a schedule did to the people and the GPUs. Exact: moments are swept, nothing is sampled.

wait = completion - submit - duration, so time lost to stops counts. A quantile is the smallest wait that so large a
share of the jobs does not exceed: a wait that somebody had. Useful work is what an attempt does after its restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rota.sim.model import HOUR_S, Result

LONG_WAIT_S = 300
LONG_JOB_S = 600
WIDE_GPUS = 8


@dataclass(frozen=True, slots=True)
class Measures:
    """Of one run. None = there is nothing to say it of."""

    jobs: int
    mean_wait_s: float
    p50_wait_s: float
    p95_wait_s: float
    p99_wait_s: float
    max_wait_s: float
    share_over_5min: float  # of the jobs, that waited longer
    short_mean_wait_s: float | None  # of jobs that declared an hour or less
    long_mean_wait_s: float | None  # of jobs that ran for more than ten minutes
    mean_jct_s: float  # completion - submit
    busy_when_full: float | None  # share of the GPUs at useful work while running + waiting GPUs >= the cluster's
    utilisation: float  # useful GPU-seconds over GPUs x the time from the first submit to the last end
    preemptions: int
    wide_jobs: int  # of 8 GPUs or more
    wide_mean_wait_s: float | None
    wide_p99_wait_s: float | None
    user_mean_wait_s: Mapping[str, float]
    worst_user_over_mean: float  # the longest mean wait of a user over the mean wait of all jobs
    jain: float  # over users' mean waits: 1 = all alike, 1 / users = one has all the waiting
    jain_slowdown: float  # over users' mean of completion time / max(duration, ten minutes)
    starvation: float | None  # the largest wait over fair turn
    starved_job: str = ""  # whose that is


def measure(result: Result, *, turns: Sequence[float] | None = None) -> Measures:
    """`turns`: of fairturn.fair_turns for the same jobs."""
    jobs, waits = result.jobs, result.waits
    ranked = sorted(waits)
    wide = sorted(wait for job, wait in zip(jobs, waits, strict=True) if job.gpus >= WIDE_GPUS)
    by_user = _by_user(result, waits)
    jct = [wait + job.duration_s for job, wait in zip(jobs, waits, strict=True)]
    slowdowns = [time / max(job.duration_s, LONG_JOB_S) for job, time in zip(jobs, jct, strict=True)]
    busy, utilisation = _busy(result)
    worst, starved = _starvation(result, waits, turns)
    mean = _mean(waits) or 0.0
    return Measures(
        jobs=len(jobs),
        mean_wait_s=mean,
        p50_wait_s=quantile(ranked, 0.5) or 0.0,
        p95_wait_s=quantile(ranked, 0.95) or 0.0,
        p99_wait_s=quantile(ranked, 0.99) or 0.0,
        max_wait_s=float(ranked[-1]) if ranked else 0.0,
        share_over_5min=sum(wait > LONG_WAIT_S for wait in waits) / max(1, len(waits)),
        short_mean_wait_s=_mean([w for j, w in zip(jobs, waits, strict=True) if 0 < (j.limit_s or 0) <= HOUR_S]),
        long_mean_wait_s=_mean([w for j, w in zip(jobs, waits, strict=True) if j.duration_s > LONG_JOB_S]),
        mean_jct_s=_mean(jct) or 0.0,
        busy_when_full=busy,
        utilisation=utilisation,
        preemptions=sum(result.stops),
        wide_jobs=len(wide),
        wide_mean_wait_s=_mean(wide),
        wide_p99_wait_s=quantile(wide, 0.99),
        user_mean_wait_s=by_user,
        worst_user_over_mean=max(by_user.values(), default=0.0) / mean if mean else 1.0,
        jain=jain(by_user.values()),
        jain_slowdown=jain(_by_user(result, slowdowns).values()),
        starvation=worst,
        starved_job=starved,
    )


def quantile(ranked: Sequence[float], share: float) -> float | None:
    """Of values sorted upwards: the smallest that at least `share` of them do not exceed."""
    if not ranked:
        return None
    return float(ranked[max(0, -(-len(ranked) * round(share * 1000) // 1000) - 1)])


def jain(values: Iterable[float]) -> float:
    """Jain's index (sum x)^2 / (n sum x^2)."""
    found = list(values)
    squares = sum(value * value for value in found)
    return sum(found) ** 2 / (len(found) * squares) if squares else 1.0


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _by_user(result: Result, values: Sequence[float]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for job, value in zip(result.jobs, values, strict=True):
        found.setdefault(job.user, []).append(value)
    return {user: sum(of) / len(of) for user, of in sorted(found.items())}


def _busy(result: Result) -> tuple[float | None, float]:
    """(useful work while the demand fills the cluster, useful work over the whole time), as shares of all GPUs. A job
    asks for its GPUs from its submit to its end, whether it runs or waits."""
    if not result.jobs:
        return None, 0.0
    moves: dict[int, list[int]] = {}  # when -> [change of the demand, change of the useful GPUs]
    for job, end_s in zip(result.jobs, result.ends, strict=True):
        moves.setdefault(job.submit_s, [0, 0])[0] += job.gpus
        moves.setdefault(end_s, [0, 0])[0] -= job.gpus
    for segment in result.segments:
        moves.setdefault(result.useful_from(segment), [0, 0])[1] += segment.gpus
        moves.setdefault(segment.end_s, [0, 0])[1] -= segment.gpus
    demand = useful = full_s = in_full = in_all = 0
    moments = sorted(moves)
    for now, following in pairwise(moments):
        demand += moves[now][0]
        useful += moves[now][1]
        in_all += useful * (following - now)
        if demand >= result.gpus:
            full_s += following - now
            in_full += useful * (following - now)
    busy = in_full / (result.gpus * full_s) if full_s else None
    return busy, in_all / max(1, result.gpus * (moments[-1] - moments[0]))


def _starvation(result: Result, waits: Sequence[int], turns: Sequence[float] | None) -> tuple[float | None, str]:
    if turns is None or not waits:
        return None, ""
    worst, at = max((wait / turn, -number) for number, (wait, turn) in enumerate(zip(waits, turns, strict=True)))
    return worst, result.jobs[-at].id
