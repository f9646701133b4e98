"""The forced end of a run: an admin ends it on record although processes of it are there (ADR 20)."""

from __future__ import annotations

from rota.app.authz import Principal
from rota.app.desk import Desk
from rota.app.settle import settle_by_force
from rota.core.run import ENDED, Cause, Exit, Run

FORCED_AFTER_S = 10.0  # after SIGKILL: whatever ends at all has ended by then, and the server has heard of it
FORCED = "ended by force"
MAX_LEFT = 600  # characters of what did not end


def end_by_force(desk: Desk, who: Principal, run: Run, left: str) -> bool:
    """End the run on record where it was cancelled and has outlived its SIGKILL by some time. False: not yet. A server
    that has just started may have sent the SIGKILL only now."""
    attempt = run.attempt
    assert attempt is not None
    stop = attempt.stop
    if stop is None or stop.cause is not Cause.CANCELLED or desk.now < stop.at + stop.grace_s + FORCED_AFTER_S:
        return False
    if desk.tick < desk.watched_from + FORCED_AFTER_S:
        return False
    why = f"{FORCED} by {who.name}: {left[:MAX_LEFT] or 'its processes did not end after SIGKILL'}"
    settle_by_force(desk, run, attempt, Exit(Cause.CANCELLED, message=why))
    return True


def was_forced(run: Run) -> bool:
    return run.state in ENDED and bool(run.past) and run.past[-1].exit.message.startswith(FORCED)
