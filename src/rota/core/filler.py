"""Fillers: short runs that lose nothing by being killed, for GPUs that nobody else who waits could use.

Because it is killed at once for anybody, a filler has neither grace nor a signal to save by, and because a long one
would hardly ever get through, it says that it is short.
"""

from __future__ import annotations

from dataclasses import replace

from rota.core.run import Spec
from rota.core.times import told
from rota.core.warning import SIGKILL

LONGEST_S = 3600.0


def as_filler(spec: Spec) -> Spec:
    """All that follows from being one."""
    made = replace(spec, preemptible=True, checkpoint_signal=SIGKILL, grace_s=0.0, warn_signal=0, warn_s=0.0)
    return replace(made, saves=False)


def problem(spec: Spec) -> str:
    """What keeps it from being one, and what would be right; "" = nothing."""
    if spec.holder is not None:
        return "a lease cannot be a filler: its process is not ours to start again"
    said = [time for time in (spec.time_limit_s, spec.estimate_s) if time is not None]
    if not said:
        return f"a filler must be short: give a time limit, or an estimate, of at most {told(LONGEST_S)}"
    if min(said) > LONGEST_S:
        return f"a filler takes at most {told(LONGEST_S)}, and this one says {told(min(said))}; it cannot be one"
    return ""
