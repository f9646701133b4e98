"""Who is next. Every ordering is a static key inside a lane, so that a waiting run is sorted once.

Aging is linear and the same for all, so it never reorders two waiting runs by itself: "priority + waited / aging_s" is
compared through `submitted_at - priority * aging_s`, which does not change with time. Under it nothing starves: a run
is overtaken only by runs submitted within a bounded time after it. Only fair share looks at something that moves, the
usage of a user, and that is the key of the user's lanes, not of each run.
"""

from __future__ import annotations

from rota.core.policy import Ordering, Policy
from rota.core.run import Run

Key = tuple[float, int]


def key(policy: Policy, run: Run) -> Key:
    """Smaller is earlier."""
    if policy.ordering is Ordering.FCFS:
        return (float(run.seq), run.seq)
    if policy.ordering is Ordering.SJF:
        return (run.expected_s + policy.sjf_aging * run.submitted_at, run.seq)
    return (run.submitted_at - run.priority * policy.aging_s, run.seq)
