"""Attempts whose supervisor would give them more time after their limit than the policy does now.

A supervisor goes by the grace that it was launched with. After the cap was lowered, or where an older version launched
the attempt without one, that is too long. Such an attempt is asked to end when it reaches its limit, with the grace of
today: a further stop only hastens an end, and no supervisor has to be told anything else.
"""

from __future__ import annotations

from rota.core import events as e
from rota.core.grace import given_s, own_s
from rota.core.policy import Policy
from rota.core.run import Cause, Run
from rota.core.warning import SIGTERM


def limit_in_s(policy: Policy, run: Run, now: float, tick: float) -> float | None:
    """Return in how many seconds such an attempt reaches its limit, at most 0 = it has; None = it is no such attempt.

    The time since its start is taken by the ticks and by the house's time, whichever is shorter: a wall clock that was
    set forward between two servers moves the latter, and must not end anybody early."""
    attempt, limit_s = run.attempt, run.spec.time_limit_s
    if attempt is None or attempt.started_at is None or attempt.stop is not None or attempt.reported:
        return None
    if limit_s is None or run.spec.holder is not None or given_s(run) <= own_s(policy, run.spec):
        return None
    launching_s = attempt.started_at - attempt.planned_at
    return limit_s - min(now - attempt.started_at, tick - attempt.planned_tick - launching_s)


def request(policy: Policy, run: Run, now: float) -> e.StopRequested:
    """Ask it to end with the whole grace that the policy gives: how much of one has passed while the machine was awake
    is not known here."""
    assert run.attempt is not None
    return e.StopRequested(
        at=now,
        run_id=run.id,
        attempt_id=run.attempt.id,
        cause=Cause.TIME_LIMIT,
        signal=SIGTERM,
        grace_s=own_s(policy, run.spec),
        why="its time limit",
    )
