"""Shortest remaining time first, by the declared class, stopping whoever has more left and said it may be stopped.

What is left is what was declared less what is done, so a declaration that is too long is believed to its end.
"""

from __future__ import annotations

from rota.core.belief import OVERRUN, PATIENT_S
from rota.core.grace import planned_s
from rota.core.policy import Policy
from rota.core.progress import done_s
from rota.core.run import Run


def standing(policy: Policy, run: Run, now: float) -> float:
    done = done_s(policy, run, now)
    left = planned_s(policy, run) - done
    return left if left >= 1.0 else max(PATIENT_S, OVERRUN * done)


def key(policy: Policy, run: Run) -> tuple[float, int]:
    return (standing(policy, run, run.submitted_at), run.seq)  # while it waits, time takes nothing off it
