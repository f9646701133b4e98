"""What is believed of a run when it is submitted; written into the log with it, so that a decision can be retraced."""

from __future__ import annotations

from rota.core.belief import SEEN, Points, believe
from rota.core.predict import expectation
from rota.core.run import Spec
from rota.core.state import State


def expect(state: State, user: str, spec: Spec) -> tuple[float, str, Points]:
    """How long it is expected to take, where that comes from, and how long it may take (core/belief.py)."""
    policy = state.policy
    expected_s, source = expectation(state.history, user, spec, policy.default_expected_s, corrects=policy.corrects)
    if not policy.corrects:
        return expected_s, source, ()
    bound_s = expected_s if spec.time_limit_s is None else spec.time_limit_s
    return expected_s, source, believe(state.history.alike(user, spec, SEEN), bound_s)
