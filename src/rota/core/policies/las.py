"""Least attained service (2D: GPUs x time): who has had least goes first, and nobody has to declare anything.

GPU-time is counted in levels, each twice the last, so that two runs that have had about the same take turns by arrival
and not by the second. Long runs are stopped for newcomers again and again, which costs each of them its restarts.
"""

from __future__ import annotations

from rota.core.policy import HOUR_S, Policy
from rota.core.progress import done_s
from rota.core.run import Run


def level(gpu_s: float) -> int:
    return int(gpu_s // HOUR_S).bit_length()


def standing(policy: Policy, run: Run, now: float) -> float:
    return float(level(done_s(policy, run, now) * run.spec.request.gpus))


def key(policy: Policy, run: Run) -> tuple[float, int]:
    return (standing(policy, run, run.submitted_at), run.seq)


def changes_at(policy: Policy, run: Run, now: float) -> float | None:
    """When a run that goes on will be of the next level."""
    gpus = run.spec.request.gpus
    if run.attempt is None or not gpus:
        return None
    done = done_s(policy, run, now)
    nearest = float(1 << level(done * gpus)) * HOUR_S / gpus
    return now + max(1.0, nearest - done)
