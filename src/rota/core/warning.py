"""The warning before a time limit: which signal, and how long before.

A program that knows nothing of a signal dies of it, so nobody is warned who did not ask: either by naming the signal
of the warning, or by having a checkpoint signal of its own, which means the same ("save now"). SIGTERM is no such
signal: every run gets it at the limit anyhow.
"""

from __future__ import annotations

from dataclasses import dataclass

from rota.core.run import Spec

SIGKILL, SIGTERM, SIGSTOP = 9, 15, 19
DEADLY = frozenset({SIGKILL, SIGSTOP})  # no program can hear these
LONGEST_S = 60.0
SHARE = 0.05  # of the limit


def saves(preemptible: bool, checkpoint_signal: int | None) -> bool:
    """Who may be stopped and names a signal that a program can hear says that it saves when it comes."""
    return preemptible and checkpoint_signal is not None and checkpoint_signal not in DEADLY


@dataclass(frozen=True, slots=True)
class Notice:
    signal: int
    before_s: float


def warning(spec: Spec) -> Notice | None:
    """None = it is not warned."""
    own = spec.checkpoint_signal
    signal = spec.warn_signal or (own if own != SIGTERM and own not in DEADLY else 0)
    if spec.time_limit_s is None or not signal:
        return None
    before_s = min(LONGEST_S, SHARE * spec.time_limit_s) if spec.warn_s is None else spec.warn_s
    return Notice(signal, before_s) if before_s > 0 else None
