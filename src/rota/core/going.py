"""Attempts that are stopping: until when each is gone, and whether a run that needs room should wait for it.

One that was cancelled, or is past its limit, is waited for instead of stopping somebody else only where that takes no
longer than the stop would, or so little longer that the stop is not worth its restart. One that was preempted is always
waited for: its grace is capped, and to stop a second one because the first saves for long makes everybody wait longer,
urgent runs too (measured on traces with graces up to 10 minutes). One that outlived its kill is not going, whatever it
was stopped for: nothing says when it will be gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rota.core.grace import PROMPT_S, for_others_s
from rota.core.overdue import DEAD_WITHIN_S
from rota.core.policy import Policy
from rota.core.resources import Placement
from rota.core.run import Attempt, Cause, Run


@dataclass(frozen=True, slots=True)
class Going:
    """What an attempt gives back that is stopping."""

    placement: Placement
    by: float  # it is sent SIGKILL then
    preempted: bool

    @property
    def overdue_at(self) -> float:
        """When it has outlived its kill, if it is there still."""
        return self.by + DEAD_WITHIN_S


def asked(policy: Policy, run: Run, placement: Placement, now: float) -> Going:
    """Return one that is preempted in this pass."""
    return Going(placement, now + for_others_s(policy, run.spec), preempted=True)


def stopping(attempt: Attempt, now: float) -> Going | None:
    """Return one that was asked to end before; None = it was not, or it outlived its kill."""
    if attempt.stop is None:
        return None
    by = attempt.stop.at + attempt.stop.grace_s
    one = Going(attempt.placement, by, preempted=attempt.stop.cause is Cause.PREEMPTED)
    return one if now < one.overdue_at else None


def worth_s(policy: Policy) -> float:
    """Return how much sooner somebody must be gone than those who leave already, to be stopped as well."""
    return max(PROMPT_S, policy.restart_cost_s)


def near(policy: Policy, going: Iterable[Going], now: float, stop_s: float = 0.0) -> list[Going]:
    """Return those that a run waits for rather than for a stop that takes so long."""
    reach_s = stop_s + worth_s(policy)
    return [one for one in going if one.preempted or one.by - reach_s <= now]
