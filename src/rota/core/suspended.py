"""What it cost a run to make way for others: how often, how long it stood still, and the GPU time of stopping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rota.core.resources import gpu_count
from rota.core.run import Attempt, Cause, PastAttempt, Run


@dataclass(frozen=True, slots=True)
class Suspended:
    times: int = 0
    seconds: float = 0.0  # from the end of a preempted attempt to the next start, or to now
    gpu_s: float = 0.0  # held between being asked to stop and the end


def suspended(run: Run, past: Sequence[PastAttempt], now: float) -> Suspended:
    """`past`: every attempt that ended, or as many of the newest as are known; oldest first."""
    if not any(map(was_preempted, past)):
        return Suspended()
    times, seconds, gpu_s = 0, 0.0, 0.0
    later: list[PastAttempt | Attempt | None] = [*past[1:], run.attempt]
    for attempt, following in zip(past, later, strict=True):
        if not was_preempted(attempt):
            continue
        times += 1
        until = following.planned_at if following is not None else (now if run.ended_at is None else run.ended_at)
        seconds += max(0.0, until - attempt.ended_at)
        if attempt.stopped_at is not None:
            gpu_s += gpu_count(attempt.placement) * max(0.0, attempt.ended_at - attempt.stopped_at)
    return Suspended(times, seconds, gpu_s)


def was_preempted(attempt: PastAttempt) -> bool:
    """Also one that was called back before it had begun."""
    exit = attempt.exit
    return exit.cause is Cause.PREEMPTED or (exit.cause is Cause.NEVER_STARTED and bool(attempt.for_run))
