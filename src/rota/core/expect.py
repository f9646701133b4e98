"""What is believed of a run when it is submitted; written into the log with it, so that a decision can be retraced."""

from __future__ import annotations

from dataclasses import replace

from rota.core.belief import SEEN, Points, believe
from rota.core.grace import beyond_s
from rota.core.predict import expectation
from rota.core.run import Spec
from rota.core.state import State


def expect(state: State, user: str, spec: Spec) -> tuple[float, str, Points]:
    """How long it is expected to take, where that comes from, and how long it may take (core/belief.py).

    A person's first estimate is believed. An agent's short estimate (`Spec.agent_estimate`) that no time limit bounds
    counts for no less than none at all, until enough of the person's runs with such an estimate have ended: else a run
    of any length that is said to take a second would go before runs of higher priority."""
    policy, history = state.policy, state.history
    expected_s, source = expectation(history, user, spec, policy.default_expected_s, corrects=policy.corrects)
    said_s = spec.estimate_s if spec.time_limit_s is None else None
    if spec.agent_estimate and said_s is not None and not history.knows_estimates(user, said_s):
        without = replace(spec, estimate_s=None)
        least_s, other = expectation(history, user, without, policy.default_expected_s, corrects=policy.corrects)
        if least_s > expected_s:
            expected_s, source = least_s, other
    if not policy.corrects:
        return expected_s, source, ()
    bound_s = (expected_s if spec.time_limit_s is None else spec.time_limit_s) + beyond_s(policy, spec)
    return expected_s, source, believe(history.alike(user, spec, SEEN), bound_s)
