"""Attempts that are stopping: until when each is gone, and whether a run that needs room should wait for it.

One that was cancelled, or is past its limit, is waited for instead of stopping somebody else only where that takes no
longer than the stop would, or so little longer that the stop is not worth its restart. One that was preempted is always
waited for: its grace is capped, and to stop a second one because the first saves for long makes everybody wait longer,
urgent runs too (measured on traces with graces up to 10 minutes). One that outlived its kill is not going: nothing says
when it will be gone. Only the run that it was preempted for counts on it a while longer, unless it is the first such.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rota.core.grace import PROMPT_S, for_others_s
from rota.core.overdue import DEAD_WITHIN_S, GIVEN_UP_AFTER_S
from rota.core.policy import Policy
from rota.core.resources import Placement, Request
from rota.core.run import Attempt, Cause, Run


@dataclass(frozen=True, slots=True)
class Going:
    """What an attempt gives back that is stopping."""

    placement: Placement
    asked_at: float
    by: float  # it is sent SIGKILL then
    preempted: bool
    until: float  # if it is there still, it is not counted on any more


@dataclass(frozen=True, slots=True)
class Returning:
    """A run that is being preempted and will wait for room again."""

    standing: float
    priority: int
    request: Request
    until: float  # so long others refrain from a stop whose room it may want


def asked(policy: Policy, run: Run, placement: Placement, now: float) -> Going:
    """Return one that is preempted in this pass."""
    return _asked(placement, now, for_others_s(policy, run.spec), preempted=True)


def stopping(attempt: Attempt) -> Going:
    """Return one that was asked to end before."""
    stop = attempt.stop
    assert stop is not None
    return _asked(attempt.placement, stop.at, stop.grace_s, preempted=stop.cause is Cause.PREEMPTED)


def _asked(placement: Placement, at: float, grace_s: float, *, preempted: bool) -> Going:
    return Going(placement, at, at + grace_s, preempted, until=at + grace_s + DEAD_WITHIN_S)


def still_awaited(victims: Iterable[Going], now: float) -> list[Going]:
    """Return those that a run counts on although they outlived their kill. `victims`: all that were preempted for it.

    One is given up at once, so that one that never dies is replaced by another; each further one only when
    `GIVEN_UP_AFTER_S`, twice that, ... have passed since the last replacement was due to be killed. Where every process
    takes a minute to give its GPUs back, or the machine was suspended, all others would be stopped in vain."""
    known = sorted(victims, key=lambda one: one.by)
    slow = [one for one in known if one.until <= now]
    if not slow:
        return []
    replaced = len({one.asked_at for one in known if one.asked_at >= slow[0].until})
    following = known[-1].by + replaced * GIVEN_UP_AFTER_S
    if not replaced or following <= now:
        replaced += 1
        following = max(now, known[-1].by) + replaced * GIVEN_UP_AFTER_S
    return [replace(one, until=following) for one in slow[replaced:]]


def worth_s(policy: Policy) -> float:
    """Return how much sooner somebody must be gone than those who leave already, to be stopped as well."""
    return max(PROMPT_S, policy.restart_cost_s)


def near(policy: Policy, going: Iterable[Going], now: float, stop_s: float = 0.0) -> list[Going]:
    """Return those that a run waits for rather than for a stop that takes so long."""
    reach_s = stop_s + worth_s(policy)
    return [one for one in going if one.preempted or one.by - reach_s <= now]
