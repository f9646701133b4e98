"""read_cluster: the machines to simulate, as `2x8` (nodes x GPUs) or a TOML file with a `[[node]]` for each kind."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rota.core.node import Gpu, Node, simulated_cluster
from rota.core.resources import MAX_GPUS_PER_NODE

MAX_NODES = 10_000
_SHORT = re.compile(r"([0-9]{1,6})x([0-9]{1,6})", re.ASCII | re.IGNORECASE)
_LEAST: Mapping[str, float] = {"count": 1, "gpus": 0, "cpus": 1, "memory_gb": 0, "gpu_memory_gb": 0}
_MOST: Mapping[str, float] = {
    "count": MAX_NODES,
    "gpus": MAX_GPUS_PER_NODE,
    "cpus": 100_000,
    "memory_gb": 1e6,
    "gpu_memory_gb": 1e4,
}
_WHOLE = ("count", "gpus", "cpus")
_KNOWN = (*_LEAST, "type")


class BadCluster(ValueError):
    """The message names the file, the key, what is wrong and what would be right."""


def read_cluster(text: str) -> tuple[Node, ...]:
    short = _SHORT.fullmatch(text.strip())
    if short is None:
        return _from_file(text)
    nodes, gpus = int(short[1]), int(short[2])
    if not (1 <= nodes <= MAX_NODES and 1 <= gpus <= MAX_GPUS_PER_NODE):
        raise BadCluster(f"{text}: use 1 to {MAX_NODES} nodes x 1 to {MAX_GPUS_PER_NODE} GPUs, like 2x8")
    return simulated_cluster(nodes, gpus)


def _from_file(name: str) -> tuple[Node, ...]:
    try:
        table = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, not TOML, or a name that cannot be one
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadCluster(f"{name}: neither NODESxGPUS, like 2x8, nor a TOML file: {reason}") from None
    kinds = table.pop("node", None)
    if table:
        raise BadCluster(f"{name}: {next(iter(table))}: unknown key; a cluster file has [[node]] tables")
    if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, dict) for kind in kinds):
        raise BadCluster(f"{name}: node: is missing; write a [[node]] table for each kind, with count and gpus")
    nodes: list[Node] = []
    for number, kind in enumerate(kinds, 1):
        where = f"{name}: node {number}"
        problem = _problem(kind)
        if problem:
            raise BadCluster(f"{where}: {problem}")
        if len(nodes) + kind.get("count", 1) > MAX_NODES:
            raise BadCluster(f"{where}: count: more than {MAX_NODES} nodes in all")
        first = len(nodes) + 1
        nodes.extend(_node(first + more, kind) for more in range(kind.get("count", 1)))
    if not any(node.gpus for node in nodes):
        raise BadCluster(f"{name}: gpus: no node has any")
    return tuple(nodes)


def _problem(kind: Mapping[str, Any]) -> str:
    for key, value in kind.items():
        if key not in _KNOWN:
            return f"{key}: unknown key, use {', '.join(_KNOWN)}"
        if key == "type":
            if not isinstance(value, str):
                return f"type: {value!r} is not a text"
            continue
        right = type(value) is int or (type(value) is float and key not in _WHOLE)
        if not right or not _LEAST[key] <= value <= _MOST[key]:
            word = "a whole number" if key in _WHOLE else "a number"
            return f"{key}: {value!r} is wrong, use {word}, {_LEAST[key]:g} to {_MOST[key]:g}"
    return "" if "gpus" in kind else "gpus: is missing"


def _node(number: int, kind: Mapping[str, Any]) -> Node:
    gpu_type, gpu_memory_gb = kind.get("type", "H100"), float(kind.get("gpu_memory_gb", 80.0))
    return Node(
        id=f"node{number}",
        hostname=f"node{number}",
        gpus=tuple(Gpu(i, f"SIM-{number}-{i}", f"Simulated {gpu_type}", gpu_memory_gb) for i in range(kind["gpus"])),
        cpus=kind.get("cpus", 128),
        memory_gb=float(kind.get("memory_gb", 1024.0)),
        simulated=True,
    )
