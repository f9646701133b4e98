"""The server's machines and its policy, as the simulator takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_type_hints

from rota.core.knobs import FIELDS

if TYPE_CHECKING:
    from rota.client.model.cluster import Node as Seen
    from rota.core.node import Node
    from rota.core.policy import Limits, Policy

# the house's, whatever the policy: what else differs makes two policies of one name
HOUSES = {"ordering", "limits", "user_limits", "max_concurrent", "max_queue", "max_reserved_gpu_s", "auto_retry"}
UNPLAYED = {"max_queue": 0, "max_reserved_gpu_s": 0.0, "auto_retry": False}  # no simulation makes use of these
MOST_KNOBS = 3
OUT_OF_SERVICE = ("error", "offline")


def cluster_of(nodes: Sequence[Seen]) -> tuple[Node, ...]:
    """What is in service now: no node that is drained or gone, no GPU that is unfit."""
    from rota.core.node import Gpu, Node

    found = []
    for node in nodes:
        gpus = tuple(
            Gpu(gpu.gpu_id, f"{node.node_id}-{gpu.gpu_id}", gpu.type, gpu.memory_total_gb)
            for gpu in node.gpus
            if gpu.status not in OUT_OF_SERVICE
        )
        if gpus and node.alive and not node.drained:
            found.append(Node(node.node_id, node.hostname, gpus, node.cpus or 1, node.memory_gb or 0.0))
    return tuple(found)


def policy_of(said: Mapping[str, Any]) -> tuple[str, Policy]:
    """What to call it, and the policy. A part that is not known here is a newer server's, and left alone; ValueError
    where a known part has a value that is not."""
    from dataclasses import replace
    from enum import Enum

    from rota.core.policy import Policy
    from rota.core.presets import name_of

    hints = get_type_hints(Policy)
    changes: dict[str, Any] = {}
    for word, value in said.items():
        name = FIELDS.get(word)
        if name is None:
            continue
        if name == "limits":
            changes[name] = _limits(value)
        elif name == "user_limits":
            changes[name] = {user: _limits(one) for user, one in value.items()}
        elif isinstance(hints[name], type) and issubclass(hints[name], Enum):
            changes[name] = hints[name](value)
        else:
            changes[name] = value
    policy = replace(Policy(), **changes)
    return f"live:{called({'policy': name_of(policy), **said})}", policy


def same(one: Policy, other: Policy) -> bool:
    """Would the two decide alike, whatever comes?"""
    from dataclasses import replace

    changes: dict[str, Any] = UNPLAYED
    return replace(one, **changes) == replace(other, **changes)


def meant_by(said: Mapping[str, Any]) -> Policy | None:
    """What the name of a policy stands for; None = it is a newer server's."""
    from rota.core.policy import Ordering, Policy
    from rota.core.presets import NAMES, named

    name = said.get("policy") or said.get("scheduling_algorithm")
    try:
        return named(name) if name in NAMES else Policy(Ordering(str(said.get("scheduling_algorithm"))))
    except ValueError:
        return None


def called(said: Mapping[str, Any]) -> str:
    """auto; or with what differs from what the name stands for: auto (patience 0.5)."""
    name = str(said.get("policy") or said.get("scheduling_algorithm") or "?")
    usual = meant_by(said)
    if usual is None:
        return name
    other = [
        f"{word} {value if isinstance(value, str) else json.dumps(value)}"
        for word, value in said.items()
        if word in FIELDS and FIELDS[word] not in HOUSES and value != getattr(usual, FIELDS[word])
    ]
    if len(other) > MOST_KNOBS:
        other[MOST_KNOBS:] = [f"and {len(other) - MOST_KNOBS} more"]
    return f"{name} ({', '.join(other)})" if other else name


def _limits(value: Mapping[str, int]) -> Limits:
    from dataclasses import fields

    from rota.core.policy import Limits

    return Limits(**{one.name: value[one.name] for one in fields(Limits) if one.name in value})
