"""Attempts that have, or would be given, more time than the policy grants now, after their limit or after a stop.

A supervisor goes by the grace that it was launched with. After the cap was lowered, or where an older version launched
the attempt without one, that is too long. Such an attempt is asked to end when it reaches its limit, with the grace of
today: a further stop only hastens an end, and no supervisor has to be told anything else. So is one that was asked
already, with a grace that is longer than today's cap, unless an admin granted it.

A job of the server's own account can stop its supervisor, which then ends nothing. Such an attempt is asked to end when
limit and grace are over and it lives; the backend continues the supervisor with the stop.
"""

from __future__ import annotations

from rota.core import events as e
from rota.core.grace import cap_s, given_s, own_s
from rota.core.overdue import DEAD_WITHIN_S
from rota.core.policy import Policy
from rota.core.run import Cause, Exit, Run
from rota.core.warning import SIGTERM, warning

FOUND_WITHIN_S = 120.0  # a dead attempt, after limit and grace, by a server that was there
LATE_WARNING_S = 60.0  # the most that a warning which was slept through moves a limit


def limit_in_s(policy: Policy, run: Run, now: float, tick: float) -> float | None:
    """Return in how many seconds an attempt with too long a grace reaches its limit, at most 0 = it has; None = it is
    none such."""
    if run.attempt is None or run.attempt.started_at is None or given_s(run) <= own_s(policy, run.spec):
        return None
    return _left_s(run, now, tick)


def is_past_limit(run: Run, now: float, tick: float) -> bool:
    """Return whether an attempt that nobody asked to end has reached its limit."""
    left_s = _left_s(run, now, tick)
    return left_s is not None and left_s <= 0


def has_outlived_limit(run: Run, past_s: float) -> bool:
    """Return whether an attempt that has been past its limit for so long has outlived its grace. The time does not
    include that in which the machine was suspended: a supervisor gives the warning and the grace after that."""
    late_s = LATE_WARNING_S if warning(run.spec) is not None else 0.0
    return past_s > given_s(run) + late_s + DEAD_WITHIN_S


def died_past_limit(run: Run, exit: Exit, watched_from: float) -> bool:
    """Return whether an attempt that ended without a record of its own, as when its supervisor was killed, is known to
    have reached its limit by then. Its end is dated when it was found. A server that began to watch after the limit
    (`watched_from`, a tick), or found it much later than it would have asked it to end, cannot tell when it died."""
    began, ended, limit_s = exit.started_tick, exit.ended_tick, run.spec.time_limit_s
    if exit.cause is not Cause.LOST or began is None or ended is None or limit_s is None:
        return False
    if watched_from > began + limit_s:
        return False
    return limit_s <= ended - began <= limit_s + given_s(run) + FOUND_WITHIN_S


def _left_s(run: Run, now: float, tick: float) -> float | None:
    """Return in how many seconds an attempt reaches its limit; None = it has none, or was asked to end.

    The time since its start is taken by the ticks and by the house's time, whichever is shorter: a wall clock that was
    set forward between two servers moves the latter, and must not end anybody early."""
    attempt, limit_s = run.attempt, run.spec.time_limit_s
    if attempt is None or attempt.stop is not None or attempt.reported:
        return None
    if limit_s is None or run.spec.holder is not None:
        return None
    began = attempt.planned_at if attempt.started_at is None else attempt.started_at
    return limit_s - min(now - began, tick - attempt.planned_tick - (began - attempt.planned_at))


def cut(policy: Policy, run: Run, now: float) -> e.StopRequested | None:
    """Return the same stop once more with the grace of today, from now on; None = it ends as soon as it would then."""
    attempt = run.attempt
    if attempt is None or attempt.stop is None or attempt.reported or run.spec.holder is not None:
        return None
    stop = attempt.stop
    granted = stop.long_grace or (run.spec.long_grace and stop.cause is not Cause.PREEMPTED)
    grace_s = cap_s(policy, run.spec)  # who cancels may ask for more than the run's own, up to the cap
    if granted or stop.at + stop.grace_s <= now + grace_s:
        return None
    return e.StopRequested(
        at=now,
        by=stop.by,
        run_id=run.id,
        attempt_id=attempt.id,
        cause=stop.cause,
        signal=stop.signal,
        grace_s=grace_s,
        for_run=stop.for_run,
        why=stop.why,
    )


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
