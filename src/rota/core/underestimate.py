"""When a run that outlived its expectation is expected to end.

An expectation binds nobody: it comes from an estimate or from past runs. A plan that takes such a run to end at any
moment lets nobody pass the run that waits for it, so one wrong estimate would keep all other GPUs idle for as long as
the run goes on. A run that is late is therefore expected to be late for as long again. What passes meanwhile delays the
waiting run by no more than the lateness that has been seen.
"""

from __future__ import annotations

import math

from rota.core.grace import PROMPT_S, given_s, kill_at
from rota.core.run import Run
from rota.core.snapshot import Snapshot

LEAST_S = 60.0  # a shorter time would let nobody pass, and a pass would be made more often
SOON_S = 1e-3


def revised_ends(snap: Snapshot) -> dict[str, float]:
    """Return the runs that are past their expected end, and when each is expected to end now. A run that was due to
    be killed is not among them (overdue.py). The part of a grace that backfill leaves out for those who would pass is
    left out here too: else each could pass that has the same limit as the one before, one after another."""
    found = {}
    for end, run_id in snap.timeline:
        late_s = snap.now - end
        if late_s <= PROMPT_S:
            break
        run = snap.runs[run_id]
        if run.attempt is None:
            continue
        killed_at = kill_at(snap.policy, run)
        later = snap.now + max(LEAST_S, late_s)
        if killed_at is None:
            found[run_id] = later
        elif killed_at > snap.now:
            planned_at = killed_at - min(PROMPT_S, given_s(run))
            found[run_id] = min(later, planned_at if planned_at > snap.now else killed_at)
    return found


def late_passers(snap: Snapshot, head: Run) -> frozenset[str]:
    """Return the people of whom a run without a time limit started while `head` waited, and is late."""
    since = head.submitted_at if head.queued_at is None else head.queued_at
    found = set()
    for end, run_id in snap.timeline:
        if snap.now - end <= PROMPT_S:
            break
        run = snap.runs[run_id]
        if run.spec.time_limit_s is None and run.attempt is not None and run.attempt.planned_at > since:
            found.add(run.user)
    return frozenset(found)


def may_be_late(run: Run, head: Run, late: frozenset[str]) -> bool:
    """Return whether only an expectation bounds a run that would pass the more urgent `head`, and another run of that
    person passed it so and is late (`late_passers`). Between equals that does not count: where nobody sets a limit, all
    that is free would be kept for one of them."""
    return run.spec.time_limit_s is None and run.priority < head.priority and run.user in late


def looked_at_again(snap: Snapshot, reserved_at: float) -> float:
    """Return when a plan with a reservation for that moment has to be made anew: by then a run on whose end it counts
    may be late."""
    if reserved_at > snap.now:
        return reserved_at + PROMPT_S + SOON_S
    for end, _ in snap.timeline:
        if end > snap.now:
            break
        if snap.now - end <= PROMPT_S:
            return end + PROMPT_S + SOON_S
    return math.inf
