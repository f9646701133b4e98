"""shake: the same jobs a little earlier or later, shorter or longer. One run of a trace misleads; twenty shaken ones
show what is luck."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from rota.sim.model import Job, in_order

SUBMIT_S = 300  # either way, and no more than this share of the time in which they come: a short rush stays one
SUBMIT = 0.01
DURATION = 0.05  # either way, as a share


def shake(jobs: Iterable[Job], seed: int) -> list[Job]:
    """In the new order of submits. A job that kept to its limit still does."""
    chance, jobs = random.Random(seed), list(jobs)
    submits = [job.submit_s for job in jobs] or [0]
    most_s = min(SUBMIT_S, round(SUBMIT * (max(submits) - min(submits))))
    return in_order(_shaken(job, chance, most_s) for job in jobs)


def _shaken(job: Job, chance: random.Random, most_s: int) -> Job:
    submit_s = max(0, job.submit_s + chance.randint(-most_s, most_s))
    duration_s = max(min(job.duration_s, 1), round(job.duration_s * chance.uniform(1 - DURATION, 1 + DURATION)))
    if job.limit_s is not None and job.duration_s <= job.limit_s:
        duration_s = min(duration_s, job.limit_s)
    return replace(job, submit_s=submit_s, duration_s=duration_s)
