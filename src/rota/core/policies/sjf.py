"""Shortest expected time first, with a reservation for the first that does not fit.

`sjf_aging` lets waiting count: a second of it is worth that many seconds of expected time. At 0 it is the textbook's,
under which a long run may wait for ever. What is expected never exceeds the time limit, so a grace beyond the usual one
is added to it: a run can take that as well.
"""

from __future__ import annotations

from rota.core.grace import beyond_s
from rota.core.policy import Policy
from rota.core.run import Run


def key(policy: Policy, run: Run) -> tuple[float, int]:
    expected_s = run.expected_s + beyond_s(policy, run.spec)
    return (expected_s + policy.sjf_aging * run.submitted_at, run.seq)
