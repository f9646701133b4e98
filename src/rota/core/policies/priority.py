"""By priority, with aging: waiting for `aging_s` is worth one step of priority, so nothing waits for ever.

Aging is linear and the same for all, so it never reorders two waiting runs by itself: "priority + waited / aging_s" is
compared through `submitted_at - priority * aging_s`, which does not change with time. A run is overtaken only by runs
submitted within a bounded time after it.
"""

from __future__ import annotations

from rota.core.policy import Policy
from rota.core.run import Run


def key(policy: Policy, run: Run) -> tuple[float, int]:
    return (run.submitted_at - run.priority * policy.aging_s, run.seq)
