"""What differs between two states, in words: the doctor's and the tests' way to see that rows and log agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import isclose
from typing import Any

from rota.core.run import ENDED, Run
from rota.core.state import State
from rota.core.usage import Usage

_PLAIN = (
    "version", "at", "epoch", "boot_id", "next_seq", "paused", "pause_why", "policy", "caps", "reservations",
    "past_reservations",
)  # fmt: skip


def compare(a: State, b: State) -> list[str]:
    """Facts only, ended runs aside: they leave a state at no fixed moment. Empty = the same."""
    found = [f"{name}: {x!r} != {y!r}" for name in _PLAIN if (x := getattr(a, name)) != (y := getattr(b, name))]
    found += _runs(_live(a), _live(b))
    if list(a.nodes) != list(b.nodes):
        found.append(f"nodes: {list(a.nodes)} != {list(b.nodes)}")
    found += [
        f"node {key}: {a.nodes[key]} != {b.nodes[key]}"
        for key in _both(a.nodes, b.nodes)
        if a.nodes[key] != b.nodes[key]
    ]
    found += _one_sided("usage of", a.usage, b.usage)
    found += [
        f"usage of {user}: {a.usage[user]} != {b.usage[user]}"
        for user in _both(a.usage, b.usage)
        if not _close(a.usage[user], b.usage[user])
    ]
    return found


def _live(state: State) -> dict[str, Run]:
    return {run_id: run for run_id, run in state.runs.items() if run.state not in ENDED}


def _runs(a: Mapping[str, Run], b: Mapping[str, Run]) -> list[str]:
    found = _one_sided("run", a, b)
    for run_id in _both(a, b):
        for field in fields(Run):
            x, y = getattr(a[run_id], field.name), getattr(b[run_id], field.name)
            if x != y:
                found.append(f"run {run_id} {field.name}: {x!r} != {y!r}")
    return found


def _both(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    return sorted(a.keys() & b.keys())


def _one_sided(what: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    return [f"{what} {key}: only in the {'first' if key in a else 'second'}" for key in sorted(a.keys() ^ b.keys())]


def _close(a: Usage, b: Usage) -> bool:
    return isclose(a.gpu_s, b.gpu_s, rel_tol=1e-9, abs_tol=1e-6) and isclose(a.at, b.at)
