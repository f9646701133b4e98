"""First come, first served: by arrival alone.

With `backfill = none` nobody passes anybody (fcfs-strict); with `skip` whatever fits starts (fcfs-skip); with `easy` or
`conservative` others pass only where they delay nobody who has a reservation.
"""

from __future__ import annotations

from rota.core.policy import Policy
from rota.core.run import Run


def key(policy: Policy, run: Run) -> tuple[float, int]:
    return (float(run.seq), run.seq)
