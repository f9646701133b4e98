"""Shortest expected time first, with a reservation for the first that does not fit.

`sjf_aging` lets waiting count: a second of it is worth that many seconds of expected time. At 0 it is the textbook's,
under which a long run may wait for ever.
"""

from __future__ import annotations

from rota.core.policy import Policy
from rota.core.run import Run


def key(policy: Policy, run: Run) -> tuple[float, int]:
    return (run.expected_s + policy.sjf_aging * run.submitted_at, run.seq)
