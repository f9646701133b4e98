"""What is believed of a run when it is submitted; written into the log with it, so that a decision can be retraced."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter

from rota.core.belief import SEEN, Points, believe
from rota.core.grace import beyond_s
from rota.core.predict import expectation
from rota.core.run import Spec
from rota.core.state import State


def expect(state: State, user: str, spec: Spec) -> tuple[float, str, Points]:
    """How long it is expected to take, where that comes from, and how long it may take (core/belief.py).

    A person's first estimate is believed, and so is what ended before. An agent's run stands in the order where its
    time limit puts it; without one (`needs_limit`) neither an estimate nor the past makes it shorter than a run of
    which nothing is known. Else a run of any length that is said to take a second, or whose command took a second with
    other numbers in it, would go before runs of higher priority."""
    policy, history = state.policy, state.history
    default_s = policy.default_expected_s
    expected_s, source = expectation(history, user, spec, default_s, corrects=policy.corrects)
    if needs_limit(spec):
        unsaid = expectation(history, user, replace(spec, estimate_s=None), default_s, corrects=policy.corrects)
        expected_s, source = max((default_s, "default"), (expected_s, source), unsaid, key=itemgetter(0))
    if spec.agent_estimate or not policy.corrects:  # () = a limit of a week is not taken for the second of runs before
        return expected_s, source, ()
    bound_s = (expected_s if spec.time_limit_s is None else spec.time_limit_s) + beyond_s(policy, spec)
    return expected_s, source, believe(history.alike(user, spec, SEEN), bound_s)


def needs_limit(spec: Spec) -> bool:
    """Return whether it is an agent's run without a time limit: by a limit it would count as short."""
    return spec.agent_estimate and spec.time_limit_s is None
