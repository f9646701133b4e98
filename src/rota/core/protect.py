"""How long a run is left alone after a start, although it may be stopped.

The start is paid for, and the run has to get on: `min_run_s`, twice and four times that after the first and the
further stops, and what a restart costs. Against one of its own priority all of it counts. Against a higher priority it
counts once the run was stopped before, against a reservation if the run started before the reservation was made; both
for `MOST_S` at most. Without that, asking for GPUs and leaving again would stop others' work over and over at no cost.
A filler is never left alone.
"""

from __future__ import annotations

import math

from rota.core.grace import for_others_s
from rota.core.policy import Policy
from rota.core.reservation import Reservation
from rota.core.run import Run

DOUBLINGS = 2  # of min_run_s, one for each stop
MOST_S = 300.0  # that an urgent run, or a reservation, waits for a run that is left alone


def alone_s(policy: Policy, attempt_number: int) -> float:
    """Return how long an attempt is left alone by runs of its own priority."""
    again = attempt_number - 1
    return policy.min_run_s * (1 << min(again, DOUBLINGS)) + (policy.restart_cost_s if again else 0.0)


def was_stopped(run: Run) -> bool:
    """Return whether it was ever preempted, for a run or for a reservation."""
    return any(past.for_run for past in run.past)


def from_equals_until(policy: Policy, run: Run) -> float:
    """Return until when runs of its own priority leave the live attempt alone."""
    assert run.attempt is not None
    since = run.attempt.planned_at
    # never stopped in the moment it started
    return max(since + alone_s(policy, run.attempt.number), math.nextafter(since, math.inf))


def from_higher_until(policy: Policy, run: Run) -> float:
    """Return until when runs of a higher priority leave the live attempt alone; -inf = not at all."""
    assert run.attempt is not None
    if run.spec.filler or not was_stopped(run):
        return -math.inf
    return min(from_equals_until(policy, run), run.attempt.planned_at + MOST_S)


def from_reservation_until(policy: Policy, run: Run, made_at: float) -> float:
    """Return until when a reservation that was made then leaves the live attempt alone; -inf = not at all: it is a
    filler, or it started when the reservation was known."""
    assert run.attempt is not None
    if run.spec.filler or run.attempt.planned_at >= made_at:
        return -math.inf
    return min(from_equals_until(policy, run), run.attempt.planned_at + MOST_S)


def gone_for_reservation_by(policy: Policy, run: Run, reservation: Reservation) -> float:
    """Return when a run that may be stopped has left the reservation's GPUs at the latest."""
    return max(reservation.start, from_reservation_until(policy, run, reservation.made_at)) + for_others_s(
        policy, run.spec
    )


def from_higher_if_started_s(policy: Policy, run: Run) -> float:
    """Return how long runs of a higher priority would leave a waiting run alone if it started."""
    return min(alone_s(policy, run.attempts_made + 1), MOST_S) if was_stopped(run) else 0.0
