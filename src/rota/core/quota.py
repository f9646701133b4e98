"""One person's limits on what runs. Used by the pass and by explain alike; what may wait is submit's to judge."""

from __future__ import annotations

from enum import Enum

from rota.core.policy import Limits
from rota.core.usage import Load


class Over(Enum):
    NOTHING = 0
    RUNS = 1  # no further run of this user may start
    GPUS = 2  # one with fewer GPUs might


def over(limits: Limits, load: Load, gpus: int) -> Over:
    if limits.running and load.running >= limits.running:
        return Over.RUNS
    if limits.gpus and gpus and load.gpus + gpus > limits.gpus:
        return Over.GPUS
    return Over.NOTHING
