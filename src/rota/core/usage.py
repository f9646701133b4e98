"""Who used how much: GPU-seconds per user, halved every `half_life_s`.

A start is charged at once with what it is expected to use, so that a burst of one user's submits does not win every GPU
before the first of them has used a second; the end trues the charge up.
"""

from __future__ import annotations

import math
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
    running: int = 0
    gpus: int = 0

    def copy(self) -> Load:
        return Load(self.queued, self.running, self.gpus)
