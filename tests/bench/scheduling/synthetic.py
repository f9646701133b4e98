"""Traces that nobody has tuned anything on: jobs of a kind of team, from chance alone.

Durations are of three sorts, each lognormal: what fails or is only looked at (minutes), experiments (hours), trainings
(most of a day and more). People come by day and less on weekends, and some send a sweep of jobs at once. The time over
which the jobs come is chosen last, so that the offered load is what the kind says.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from rota.sim.model import DAY_S, HOUR_S, Job

LONGEST_S = 7 * DAY_S
# median and spread (of the logarithm) of a duration: short, experiment, training
SORTS = ((240.0, 1.1), (5400.0, 1.0), (50_000.0, 0.9))


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    about: str
    nodes: str
    jobs: int
    users: int
    load: float
    sorts: tuple[float, float, float]  # how many of each
    gpus: Mapping[int, float]  # how many ask for so many
    sweep: float  # chance that a submit is a sweep: eight to thirty alike at once


KINDS = (
    Kind(
        "lab", "a dozen people, everything mixed", "2x8", 1500, 12, 0.90,
        (0.62, 0.32, 0.06), {1: 0.66, 2: 0.15, 4: 0.10, 8: 0.08, 16: 0.01}, 0.01,
    ),
    Kind(
        "pair", "two people who send sweeps", "2x8", 1200, 2, 0.92,
        (0.40, 0.55, 0.05), {1: 0.75, 2: 0.13, 4: 0.08, 8: 0.04}, 0.05,
    ),
    Kind(
        "gangs", "a third of the jobs ask for 8 GPUs or more", "4x8", 1200, 8, 0.85,
        (0.55, 0.38, 0.07), {1: 0.35, 2: 0.12, 4: 0.18, 8: 0.25, 16: 0.10}, 0.0,
    ),
    Kind(
        "crowd", "forty people, mostly short jobs", "4x8", 3000, 40, 0.95,
        (0.75, 0.21, 0.04), {1: 0.72, 2: 0.12, 4: 0.09, 8: 0.06, 16: 0.01}, 0.01,
    ),
)  # fmt: skip


def make(name: str, seed: int) -> list[Job]:
    """The same name and seed give the same jobs."""
    kind = next(one for one in KINDS if one.name == name)
    chance = random.Random(f"{name} {seed}")
    weights = [1.0 / (rank + 1) ** 0.8 for rank in range(kind.users)]  # some send far more than others
    shapes: list[tuple[int, int, str, float]] = []  # GPUs, seconds, user, when as a share of the time
    while len(shapes) < kind.jobs:
        when = chance.random()
        user = f"u{chance.choices(range(kind.users), weights)[0] + 1}"
        gpus = chance.choices(list(kind.gpus), list(kind.gpus.values()))[0]
        middle, spread = SORTS[chance.choices(range(3), kind.sorts)[0]]
        many = chance.randint(8, 30) if chance.random() < kind.sweep and gpus <= 2 else 1
        for _ in range(min(many, kind.jobs - len(shapes))):
            # those of a sweep are about as long as each other
            wide = spread if many == 1 else 0.3
            seconds = min(LONGEST_S, max(5, round(middle * math.exp(chance.gauss(0.0, wide)))))
            shapes.append((gpus, seconds, user, when))
    total_gpus = math.prod(int(part) for part in kind.nodes.split("x"))
    span_s = sum(gpus * seconds for gpus, seconds, _, _ in shapes) / (total_gpus * kind.load)
    shapes.sort(key=lambda shape: shape[3])
    submits = _submits([shape[3] for shape in shapes], span_s)
    return [
        Job(f"{name}-{number}", submit_s, seconds, gpus, user)
        for number, (submit_s, (gpus, seconds, user, _)) in enumerate(zip(submits, shapes, strict=True))
    ]


def _submits(shares: list[float], span_s: float) -> list[int]:
    """When so large a share of all submits has come, if they come as people do."""
    hours = max(1, round(span_s / HOUR_S))
    rates = [_rate(hour) for hour in range(hours)]
    sums = list(accumulate(rates, initial=0.0))
    found = []
    for share in shares:
        goal = share * sums[-1]
        hour = min(hours, max(1, bisect_left(sums, goal))) - 1
        found.append(round((hour + (goal - sums[hour]) / rates[hour]) * span_s / hours))
    return found


def _rate(hour: int) -> float:
    by_day = 1.0 - 0.8 * math.cos(2 * math.pi * ((hour - 3) % 24) / 24)  # most in the afternoon, least at night
    return by_day * (0.4 if hour // 24 % 7 >= 5 else 1.0)
