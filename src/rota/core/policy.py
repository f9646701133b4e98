"""What the person who runs the cluster can set. Policy = ordering x backfill x limits x preemption, plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


class Ordering(StrEnum):
    """Who is next; each is a module of core/policies."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    SJF = "sjf"
    FAIR_SHARE = "fair_share"
    SRTF = "srtf"
    LAS = "las"
    AUTO = "auto"


class Backfill(StrEnum):
    """Who may pass one that waits for room."""

    CONSERVATIVE = "conservative"  # everybody who waits has a reservation; others pass only if they delay none
    EASY = "easy"  # a reservation for the first that cannot start; others pass only if they do not delay it
    SKIP = "skip"  # whatever fits starts; wide runs may wait long
    NONE = "none"  # strictly in order


class Packing(StrEnum):
    """Which of the nodes that have room."""

    BEST_FIT = "best_fit"  # the fullest, so that whole nodes stay free
    FRAGMENT = "fragment"  # where the least room is lost for what usually comes (core/fragment.py)


@dataclass(frozen=True, slots=True)
class Limits:
    """Per person; 0 = no limit."""

    running: int = 0
    gpus: int = 0
    queued: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    ordering: Ordering = field(default=Ordering.AUTO, metadata={"was": Ordering.PRIORITY})
    backfill: Backfill = Backfill.EASY
    packing: Packing = Packing.BEST_FIT
    backfill_depth: int = 500  # runs looked at per pass behind the reservation
    max_concurrent: int = 0  # active runs in all; 0 = no limit
    max_queue: int = 200_000
    limits: Limits = Limits()
    user_limits: Mapping[str, Limits] = field(default_factory=dict)
    aging_s: float = DAY_S  # waiting this long is worth one step of priority
    sjf_aging: float = 0.1  # under sjf a second of waiting is worth this many seconds of expected time
    half_life_s: float = 7 * DAY_S  # of used GPU-seconds under fair_share
    default_expected_s: float = 4 * HOUR_S  # when nothing at all is known
    # runs that said they may be stopped are, for others that are more urgent
    preemption: bool = field(default=True, metadata={"was": False})
    # what was declared is corrected by what runs declared alike turned out to take
    corrects: bool = field(default=True, metadata={"was": False})
    margin: float = 1.5  # under srtf, las and auto: by how much more urgent one must be to stop another
    min_run_s: float = 60.0  # nobody is stopped sooner than this after a start (core/protect.py)
    restart_cost_s: float = 60.0  # GPU time believed to be lost with every stop
    patience: float = 1.0  # under auto: after waiting this share of its declared time a run is twice as urgent
    express: float = 0.25  # under auto: times the square root of all GPUs are left to short runs (core/express.py)
    max_reserved_gpu_s: float = 64 * HOUR_S  # of one person, in 7 days and ahead; admins: no bound
    max_grace_s: float = 300.0  # from the polite signal to SIGKILL; admins: no bound (core/grace.py)
    max_checkpoint_grace_s: float = 600.0  # the same for runs with a checkpoint signal, which need time to save
    auto_retry: bool = True
    retry_base_s: float = 5.0
    retry_cap_s: float = 600.0

    def limits_of(self, user: str) -> Limits:
        return self.user_limits.get(user, self.limits)


LARGEST = 1e12
_AT_LEAST: Mapping[str, float] = {
    "backfill_depth": 0,
    "max_concurrent": 0,
    "max_queue": 1,
    "aging_s": 1,
    "sjf_aging": 0,
    "half_life_s": 60,
    "default_expected_s": 1,
    "margin": 1,
    "min_run_s": 0,
    "restart_cost_s": 0,
    "patience": 1e-3,
    "express": 0,
    "max_reserved_gpu_s": 0,
    "max_grace_s": 0,
    "max_checkpoint_grace_s": 0,
    "retry_base_s": 0,
    "retry_cap_s": 0,
}


def problems(policy: Policy) -> list[str]:
    """Every field that makes no sense, in words; empty = fine."""
    found = []
    for name, least in _AT_LEAST.items():
        value = getattr(policy, name)
        if not least <= value <= LARGEST:  # NaN is not
            found.append(f"{name}: {value} is out of range, use {least:g} to {LARGEST:g}")
    for who, limits in [("limits", policy.limits), *((f"user_limits[{u}]", x) for u, x in policy.user_limits.items())]:
        for name in ("running", "gpus", "queued"):
            if not 0 <= getattr(limits, name) <= LARGEST:
                found.append(f"{who}.{name}: {getattr(limits, name)} is out of range, use 0 for no limit")
    return found
