"""Whole policies by name: the ones people run today, and ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rota.core.policy import Backfill, Ordering, Policy
from rota.core.policynames import NAMES

_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "fcfs-strict": {"ordering": Ordering.FCFS, "backfill": Backfill.NONE},
    "fcfs-skip": {"ordering": Ordering.FCFS, "backfill": Backfill.SKIP},
    "priority": {"ordering": Ordering.PRIORITY, "backfill": Backfill.EASY},
    "sjf": {"ordering": Ordering.SJF, "backfill": Backfill.EASY, "sjf_aging": 0.0},
    "fair_share": {"ordering": Ordering.FAIR_SHARE, "backfill": Backfill.EASY},
    "easy": {"ordering": Ordering.FCFS, "backfill": Backfill.EASY},
    "conservative": {"ordering": Ordering.FCFS, "backfill": Backfill.CONSERVATIVE},
    "srtf": {"ordering": Ordering.SRTF, "backfill": Backfill.SKIP, "preemption": True},
    "las": {"ordering": Ordering.LAS, "backfill": Backfill.SKIP, "preemption": True},
    "auto": {"ordering": Ordering.AUTO, "backfill": Backfill.EASY, "preemption": True, "corrects": True},
}
assert tuple(_PRESETS) == NAMES


__all__ = ["NAMES", "name_of", "named"]


def named(name: str, base: Policy | None = None) -> Policy:
    """`base` with what the name stands for; KeyError = there is no such name."""
    plain: Mapping[str, Any] = {"preemption": False, "corrects": False}
    return replace(base or Policy(), **{**plain, **_PRESETS[name]})


def name_of(policy: Policy) -> str:
    """The name whose meaning this policy has, else the name of its ordering."""
    for name in NAMES:
        if named(name, policy) == policy:
            return name
    return str(policy.ordering)
