"""GPUs that long runs leave to short ones, where nobody could make the long ones go.

Once every GPU is taken for days by work that cannot be stopped, a run of ten minutes waits for days, whatever the order
says. So under auto a long run that cannot be stopped starts only if a few GPUs stay within reach of short ones: free,
or held by somebody who can be stopped. The number of them grows with the square root of the cluster, as the spare
servers do that keep a queue short: a large cluster has GPUs coming back all the time, a small one (below 16 by default)
is used to the last.

It is a courtesy, and has ends. Who has waited for a few times its own length, or a week, no longer stands back. Runs as
wide as a node never do: they would leave many GPUs idle for the sake of a few. And while one of those waits for
room, or they hold half of all GPUs, nobody does: a GPU kept free pushes long runs onto one more node, and where gangs
are the daily work that costs them more than short runs gain.
"""

from __future__ import annotations

import math

from rota.core.policy import DAY_S, HOUR_S, Policy
from rota.core.progress import bound_s
from rota.core.run import NORMAL, Run

SHORT_S = 4 * HOUR_S
COURTESY = 3.0  # times what it declared
MOST_S = 7 * DAY_S


def kept(policy: Policy, gpus: int) -> int:
    """GPUs that are kept of so many."""
    return min(gpus, int(policy.express * math.sqrt(gpus)))


def stays(policy: Policy, run: Run) -> bool:
    """Holds for long what it gets, and nobody can make it go."""
    if run.spec.reservation or run.priority > NORMAL or bound_s(run) <= SHORT_S:
        return False
    return not yields(policy, run)


def yields(policy: Policy, run: Run) -> bool:
    """Can be stopped for a short run: a filler, or with its work kept, or because it is of low priority."""
    if run.spec.filler:
        return True
    return policy.preemption and run.spec.stoppable and (run.saves or run.priority < NORMAL)
