"""Who used how much: GPU-seconds per user, halved every `half_life_s`.

A start is charged at once with what it is expected to use, so that a burst of one user's submits does not win every GPU
before the first of them has used a second; the end trues the charge up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    gpu_s: float = 0.0
    at: float = 0.0

    def decayed(self, now: float, half_life_s: float) -> float:
        if now <= self.at or not self.gpu_s:
            return self.gpu_s
        return self.gpu_s * math.exp2(-min((now - self.at) / half_life_s, 1000.0))

    def charged(self, gpu_s: float, now: float, half_life_s: float) -> Usage:
        return Usage(max(0.0, self.decayed(now, half_life_s) + gpu_s), max(now, self.at))


@dataclass(slots=True)
class Load:
    """What a user has going on now, for the limits."""

    queued: int = 0
    held: int = 0  # of them
    running: int = 0
    gpus: int = 0
    edges: int = 0  # dependencies that the user's waiting runs still wait for

    def copy(self) -> Load:
        return Load(self.queued, self.held, self.running, self.gpus, self.edges)


# Under auto a person's usage counts to this power, within these bounds, beside the mean of all who want something
FAIRNESS = 0.2
MOST = 4.0
LEAST_FACTOR = MOST**-FAIRNESS
CALM_S = 3600.0  # and so much of the whole cluster is added to both: who has used next to nothing is as good as another


class Shares:
    """What each person has used, at one moment."""

    def __init__(
        self, usage: Mapping[str, Usage], people: Collection[str], now: float, half_life_s: float, gpus: int
    ) -> None:
        """`people`: those who want something now. `gpus`: of the whole cluster."""
        self.now = now
        self._usage, self._people, self._half_life_s = usage, people, half_life_s
        self._known: dict[str, float] = {}
        self._factors: dict[str, float] = {}
        self._calm = CALM_S * max(gpus, 1)
        self._mean: float | None = None

    def of(self, user: str) -> float:
        known = self._known.get(user)
        if known is None:
            known = self._known[user] = self._usage.get(user, Usage()).decayed(self.now, self._half_life_s)
        return known

    def add(self, user: str, gpu_s: float) -> None:
        self._known[user] = self.of(user) + gpu_s

    def factor(self, user: str) -> float:
        """1 = as much as the others; more = more."""
        known = self._factors.get(user)
        if known is None:
            if self._mean is None:
                self._mean = sum(self.of(other) for other in self._people) / max(1, len(self._people))
            ratio = (self.of(user) + self._calm) / (self._mean + self._calm)
            known = self._factors[user] = min(max(ratio, 1 / MOST), MOST) ** FAIRNESS
        return known
