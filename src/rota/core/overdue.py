"""Runs that hold GPUs although they should be gone: since when, until when at the latest, and what would end them.

A run is overdue when it was asked to end, when it is past its time limit, or when it holds GPUs of a reservation that
has begun. A run that outlived its SIGKILL is overdue without a bound. Why is not known here: its processes may be in an
uninterruptible wait for a device or a file system, or be traced, or their supervisor may be stopped. Nobody counts on
its end: it keeps no run from preempting others (going.py), has no end in a forecast, and after a while none in a plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rota.core.grace import kill_at, limit_at
from rota.core.policy import Policy
from rota.core.protect import from_reservation_until, gone_for_reservation_by
from rota.core.reservation import Reservation
from rota.core.resources import Placement
from rota.core.run import Cause, Run
from rota.core.snapshot import Snapshot
from rota.core.times import about

# A killed process is gone within milliseconds. Reading the exit, committing it and a busy machine take longer.
DEAD_WITHIN_S = 5.0
# A driver may take minutes to take GPUs back from a dead process. For so long a reservation still counts on them: one
# that is given up too early costs hours, since others start on what was free of it.
GIVEN_UP_AFTER_S = 300.0


@dataclass(frozen=True, slots=True)
class Overdue:
    run_id: str
    user: str
    since: float
    until: float | None  # killed by then at the latest; None = nothing bounds it
    text: str  # who, since when, until when, and what would end it


def overdue(policy: Policy, run: Run, now: float, reservation: Reservation | None = None) -> Overdue | None:
    """Return why the run should not hold its GPUs any more; None = it may. `reservation`: one that wants its GPUs."""
    attempt = run.attempt
    if attempt is None or attempt.reported:
        return None
    limit, killed_at = limit_at(run), kill_at(policy, run)
    past_limit = limit is not None and limit <= now
    if attempt.stop is not None or past_limit:
        assert killed_at is not None
        since = min(([limit] if limit is not None and past_limit else []) + ([attempt.stop.at] if attempt.stop else []))
        what = _asked(run) if attempt.stop is not None and since == attempt.stop.at else "is past its time limit"
        if has_outlived_kill(policy, run, now):
            is_lease = run.spec.holder is not None
            others = "the server may not end them" if is_lease else "their supervisor was stopped"
            text = (
                f"{_named(run)} was due to be killed {about(now - killed_at)} ago and has not died: its processes wait "
                f"for a device, a file system or another process in the kernel (state D), or a process of another "
                f"account traces them (state t), or {others}, or the machine was suspended; `rota explain {run.id}` "
                f"says what can be seen of that, and an admin who has looked at the machine gives the GPUs back with "
                f"`rota cancel --force {run.id}`"
            )
            return Overdue(run.id, run.user, killed_at, None, text)
        left = f"it is killed in {about(killed_at - now)} at the latest" if killed_at > now else "it is being killed"
        text = f"{_named(run)} {what} since {about(now - since)}; {left}; {_remedy(run)}"
        return Overdue(run.id, run.user, since, max(now, killed_at), text)
    if reservation is None or not reservation.active(now) or run.spec.reservation == reservation.id:
        return None
    if run.spec.stoppable:
        return _left_alone(policy, run, now, reservation)
    bound = "it has no time limit" if killed_at is None else f"its time limit ends it in {about(killed_at - now)}"
    text = f"{_named(run)} holds its GPUs {about(now - reservation.start)} into the reservation {reservation.id}"
    return Overdue(run.id, run.user, reservation.start, killed_at, f"{text}; {bound}; {_remedy(run)}")


def given_up(snap: Snapshot) -> tuple[frozenset[str], float]:
    """Return the runs that were asked to end, and outlived their kill by so much that no plan counts on their end; and
    when the next one will have."""
    found, following = [], math.inf
    for end, run_id in snap.timeline:
        if end > snap.now:
            break
        attempt = snap.runs[run_id].attempt
        if attempt is not None and attempt.stop is not None:
            at = attempt.stop.at + attempt.stop.grace_s + GIVEN_UP_AFTER_S
            if at <= snap.now:
                found.append(run_id)
            else:
                following = min(at, following)
    return frozenset(found), following


def _left_alone(policy: Policy, run: Run, now: float, reservation: Reservation) -> Overdue:
    """It started shortly before the reservation was made, and is asked to end when it has had its time."""
    asked_at = max(now, from_reservation_until(policy, run, reservation.made_at))
    text = (
        f"{_named(run)} holds its GPUs {about(now - reservation.start)} into the reservation {reservation.id}: it had "
        f"only just started when that was made, and is asked to end in {about(asked_at - now)}; {_remedy(run)}"
    )
    until = max(now, gone_for_reservation_by(policy, run, reservation))
    return Overdue(run.id, run.user, reservation.start, until, text)


def has_outlived_kill(policy: Policy, run: Run, now: float) -> bool:
    """Return whether its processes were due to be killed, and should be gone by now."""
    if run.attempt is None or run.attempt.reported:
        return False
    killed_at = kill_at(policy, run)
    return killed_at is not None and now >= killed_at + DEAD_WITHIN_S and not _is_returned(run)


def holds(run: Run, placement: Placement) -> bool:
    """Return whether the live attempt has any of these GPUs."""
    wanted = {part.node: part.gpus for part in placement}
    held = run.attempt.placement if run.attempt is not None else ()
    return any(wanted.get(part.node, 0) & part.gpus for part in held)


def _named(run: Run) -> str:
    return f"{run.id} of {run.user}"


def _asked(run: Run) -> str:
    assert run.attempt is not None
    stop = run.attempt.stop
    assert stop is not None
    if stop.cause is Cause.TIME_LIMIT:
        return "is past its time limit"
    if stop.cause is Cause.PREEMPTED:
        # not for which one: who reads this may not be allowed to see that run
        return "is being preempted for another run" if stop.for_run else "is being preempted"
    return "is a lease on its way back" if stop.cause is Cause.RELEASED else "is being cancelled"


def _is_returned(run: Run) -> bool:
    """A lease that was given back: its process is not Rota's to kill."""
    return run.attempt is not None and run.attempt.stop is not None and run.attempt.stop.cause is Cause.RELEASED


def _remedy(run: Run) -> str:
    if run.spec.holder is not None and run.spec.holder.uid < 0:
        return f"it ends with process {run.spec.holder.pid}, or when the lease is given back"
    return f"`rota cancel --now {run.id}`, by {run.user} or an admin, ends it at once"
