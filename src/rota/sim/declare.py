"""declare: what people would have said about their jobs' time, where a trace does not tell.

A declared time may be shorter than the truth: a fifth of the careless leave the usual three days. The server would stop
such a job at its limit; the simulation never does (engine.py says why), so it shows what a wrong word costs everybody
else.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum

from rota.sim.model import DAY_S, HOUR_S, Job

CLASSES_S = (HOUR_S, 4 * HOUR_S, 12 * HOUR_S, DAY_S, 3 * DAY_S, 7 * DAY_S, 30 * DAY_S, 90 * DAY_S)
USUAL_S = 3 * DAY_S
RIGHT, ONE_TOO_HIGH = 0.5, 0.3  # shares of the careless; the rest leave USUAL_S as it stands


class Declared(StrEnum):
    TRUE = "true"  # to the second
    CLASS = "class"  # the smallest class that holds it
    SLOPPY = "sloppy"  # half right, three in ten one class too high, the others leave three days
    NONE = "none"  # nobody says anything


def declare(jobs: Iterable[Job], how: Declared | str, seed: int) -> list[Job]:
    """The same jobs with a limit each. One that has its limit from the trace keeps it."""
    how, chance = Declared(how), random.Random(seed)
    return [
        job if job.limit_s is not None else replace(job, limit_s=_limit(job.duration_s, how, chance.random()))
        for job in jobs
    ]


def _limit(duration_s: int, how: Declared, draw: float) -> int | None:
    if how is Declared.NONE:
        return None
    if how is Declared.TRUE:
        return max(1, duration_s)
    right = next((n for n, limit in enumerate(CLASSES_S) if limit >= duration_s), len(CLASSES_S) - 1)
    if how is Declared.CLASS or draw < RIGHT:
        return CLASSES_S[right]
    return CLASSES_S[min(right + 1, len(CLASSES_S) - 1)] if draw < RIGHT + ONE_TOO_HIGH else USUAL_S
