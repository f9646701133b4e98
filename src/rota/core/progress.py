"""How far a run has come and how long it can take, as the scheduler sees it."""

from __future__ import annotations

from rota.core.policy import Policy
from rota.core.run import Run


def bound_s(run: Run) -> float:
    """How long it can take at most, as far as anybody knows."""
    return run.expected_s if run.spec.time_limit_s is None else run.spec.time_limit_s


def done_s(policy: Policy, run: Run, now: float) -> float:
    """Seconds of its work that are behind it: what earlier attempts kept, and of this one what came after its start."""
    attempt = run.attempt
    if attempt is None:
        return run.attained_s
    begun = attempt.planned_at if attempt.started_at is None else attempt.started_at
    return run.attained_s + gained_s(policy, attempt.number, now - begun)


def gained_s(policy: Policy, number: int, ran_s: float) -> float:
    """What an attempt that ran so long adds: a restart must first get back to where the last one was."""
    return max(0.0, ran_s - (policy.restart_cost_s if number > 1 else 0.0))


def left_of(run: Run) -> float:
    """How long the next attempt is expected to take."""
    if not run.attained_s:
        return run.expected_s
    return max(1.0, run.expected_s - run.attained_s, 0.1 * run.expected_s)


def charged_s(run: Run) -> float:
    """Return for how long each GPU is charged when an attempt starts: of an agent's run by its time limit at least, as
    in the order: else a burst of runs that are said to be short would take all GPUs."""
    if not run.spec.agent_estimate or run.spec.time_limit_s is None:
        return left_of(run)
    return max(left_of(run), run.spec.time_limit_s - run.attained_s)
