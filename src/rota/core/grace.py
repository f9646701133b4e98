"""How long a run may go on after it was asked to end, and when it is gone at the latest.

The grace is the time between the polite signal and SIGKILL. A run names its own, and the policy caps it: other people
plan with the time limit, so a grace must not be a way around it. An admin may give a run a longer one (`long_grace`),
which then counts at the run's own time limit and when its owner cancels it. A stop on behalf of others (preemption,
a reservation that begins, a cancel by another person) never grants more than the cap.
"""

from __future__ import annotations

from rota.core.policy import Policy
from rota.core.progress import bound_s
from rota.core.run import Run, Spec
from rota.core.warning import DEADLY, SIGTERM

# Ends within this time count as prompt: it is the default grace, and launching the next run takes as long. Backfill and
# the orderings count the time limit alone for such runs, or no two limits would ever fit back to back.
PROMPT_S = 10.0


def has_checkpoint_signal(spec: Spec) -> bool:
    """Return whether the run names a signal by which it saves: it then needs more time than one that only leaves."""
    return spec.saves or (spec.checkpoint_signal != SIGTERM and spec.checkpoint_signal not in DEADLY)


def cap_s(policy: Policy, spec: Spec) -> float:
    """Return the longest grace that anybody but an admin may give such a run."""
    if has_checkpoint_signal(spec):
        return max(policy.max_grace_s, policy.max_checkpoint_grace_s)
    return policy.max_grace_s


def for_others_s(policy: Policy, spec: Spec) -> float:
    """Return the grace of a stop on behalf of others."""
    return min(spec.grace_s, cap_s(policy, spec))


def own_s(policy: Policy, spec: Spec) -> float:
    """Return the grace at the run's own time limit, and when its owner cancels it."""
    return spec.grace_s if spec.long_grace else for_others_s(policy, spec)


def at_launch_s(policy: Policy, spec: Spec) -> float | None:
    """Return the grace that a supervisor is launched with; None = the spec's own, as nearly always."""
    capped_s = own_s(policy, spec)
    return capped_s if capped_s < spec.grace_s else None


def given_s(run: Run) -> float:
    """Return the grace that the supervisor of the live attempt has, whatever the policy has become since."""
    attempt = run.attempt
    return run.spec.grace_s if attempt is None or attempt.grace_s is None else attempt.grace_s


def longest_s(policy: Policy, run: Run) -> float:
    """Return how long an attempt can hold its GPUs: up to its time limit and its grace, or as long as is expected."""
    return bound_s(run) + (0.0 if run.spec.time_limit_s is None else own_s(policy, run.spec))


def beyond_s(policy: Policy, spec: Spec) -> float:
    """Return how long a run may hold its GPUs past its time limit, without the part of the grace that every end takes;
    0 for a run without a limit."""
    if spec.time_limit_s is None or spec.grace_s <= PROMPT_S:
        return 0.0
    return max(0.0, own_s(policy, spec) - PROMPT_S)


def planned_s(policy: Policy, run: Run) -> float:
    """Return the length that backfill plans with and that the orderings compare: the time limit and `beyond_s`, or what
    is expected of a run without a limit."""
    if run.spec.grace_s <= PROMPT_S:  # nearly all: a pass asks this of every waiting run
        return bound_s(run)
    return bound_s(run) + beyond_s(policy, run.spec)


def limit_at(run: Run) -> float | None:
    """Return when the live attempt reaches its time limit; None = it has none."""
    attempt = run.attempt
    if attempt is None or run.spec.time_limit_s is None:
        return None
    return (attempt.planned_at if attempt.started_at is None else attempt.started_at) + run.spec.time_limit_s


def kill_at(policy: Policy, run: Run) -> float | None:
    """Return when SIGKILL reaches the live attempt at the latest; None = no stop was asked for and it has no limit."""
    limit, stop = limit_at(run), run.attempt.stop if run.attempt is not None else None
    if stop is None:
        # a supervisor that would give it more is told to stop it at its limit (overrun.py)
        return None if limit is None else limit + min(given_s(run), own_s(policy, run.spec))
    killed_at = stop.at + stop.grace_s
    return killed_at if limit is None or stop.at < limit else min(killed_at, limit + given_s(run))
