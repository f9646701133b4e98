"""Nodes, GPUs and who holds them, in the words of the GPU door.

`utilization_percent` of the cluster is the share that is given out. What a GPU itself does (load, temperature) is not
measured here: those numbers are 0.0 and `measured` says so. `memory_available_gb` is what can still be given: a GPU is
given whole, so it is all or nothing. One that a reservation keeps is `available`, to its runs; `reserved` says whose.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from rota.api.house import House
from rota.api.render.limits import enforced
from rota.api.render.unnamed import HIDDEN
from rota.app.authz import Principal
from rota.app.views import View
from rota.core.node import Gpu, Node
from rota.core.reservation import Reservation
from rota.core.resources import bits, gpu_count
from rota.core.run import Run


class ReservedFor(BaseModel):
    """By a reservation whose time is now: while nobody holds the GPU only its runs may."""

    reservation_id: str
    name: str
    user: str
    users: list[str] = Field(description="Who may use it besides its owner.")
    until: float


class GpuStatus(BaseModel):
    node_id: str
    gpu_id: int
    type: str
    memory_total_gb: float
    memory_available_gb: float
    utilization_percent: float
    temperature_celsius: float
    measured: bool
    status: str
    why: str
    allocated_to: str | None
    allocated_at: float | None
    user: str | None
    name: str | None
    reserved: ReservedFor | None


class NodeStatus(BaseModel):
    node_id: str
    hostname: str
    gpu_count: int
    gpu_type: str
    gpus: list[GpuStatus]
    last_updated: float
    cpus: int
    memory_gb: float
    simulated: bool
    drained: bool
    drain_why: str
    alive: bool
    enforced: list[str] | None = Field(
        None,
        description="Which amounts are limits there: memory_gb and cpus of a run that asks for them, processes of "
        "every run. null = not known yet.",
    )


class Allocation(BaseModel):
    job_id: str
    gpus: list[GpuStatus]
    allocated_at: float
    user: str


class ClusterStatus(BaseModel):
    total_gpus: int
    available_gpus: int
    allocated_gpus: int
    nodes: list[NodeStatus]
    allocations: list[Allocation]
    utilization_percent: float
    simulated: bool


class Picture:
    """One moment of the cluster, as one caller may see it."""

    def __init__(self, house: House, who: Principal) -> None:
        self._house, self._who = house, who
        self.view: View = house.service.view()
        self._holders = self.view.holders()
        self._now = time.time()
        self._reserved = _reserved_now(self.view.reservations, house.service.now())

    def cluster(self, shape: Sequence[Node] | None = None) -> dict[str, Any]:
        """`shape`: as if the nodes were these, for a dry run; nothing runs on them."""
        nodes = tuple(self.view.nodes.values()) if shape is None else shape
        drawn = [self.node(node) for node in nodes]
        gpus = {(gpu["node_id"], gpu["gpu_id"]): gpu for node in drawn for gpu in node["gpus"]}
        states = Counter(gpu["status"] for gpu in gpus.values())
        total = states.total()
        return {
            "total_gpus": total,
            "available_gpus": states["available"],
            "allocated_gpus": states["allocated"],
            "nodes": drawn,
            "allocations": [self._allocation(run, gpus) for run in self.view.active() if _holds(run)],
            "utilization_percent": round(100.0 * states["allocated"] / total, 1) if total else 0.0,
            "simulated": any(node.simulated for node in nodes),
        }

    def summary(self) -> dict[str, int]:
        return {
            "total_gpus": self.view.total_gpus(),
            "available_gpus": self.view.free_gpus(),
            "allocated_gpus": len(self._holders),
        }

    def node(self, node: Node) -> dict[str, Any]:
        kinds = sorted({gpu.type for gpu in node.gpus})
        return {
            "node_id": node.id,
            "hostname": node.hostname,
            "gpu_count": len(node.gpus),
            "gpu_type": ", ".join(kinds),
            "gpus": [self.gpu(node, gpu) for gpu in node.gpus],
            "last_updated": self._now,
            "cpus": node.cpus,
            "memory_gb": node.memory_gb,
            "simulated": node.simulated,
            "drained": node.drained,
            "drain_why": node.drain_why,
            "alive": node.alive,
            "enforced": enforced(self._house),
        }

    def gpu(self, node: Node, gpu: Gpu) -> dict[str, Any]:
        run = self._holders.get((node.id, gpu.index))
        status, why = _status(node, gpu, run)
        attempt = run.attempt if run is not None else None
        return {
            "node_id": node.id,
            "gpu_id": gpu.index,
            "type": gpu.type,
            "memory_total_gb": gpu.memory_gb,
            "memory_available_gb": gpu.memory_gb if status == "available" else 0.0,
            "utilization_percent": 0.0,
            "temperature_celsius": 0.0,
            "measured": False,
            "status": status,
            "why": why,
            "allocated_at": attempt.planned_at if attempt is not None else None,
            **self._holder(run),
            "reserved": self._kept(self._reserved.get((node.id, gpu.index))),
        }

    def _kept(self, found: Reservation | None) -> dict[str, Any] | None:
        if found is None:
            return None
        mine = self._house.may_see_of(self._who, found.user) or self._who.owner in found.users
        return {
            "reservation_id": found.id if mine else HIDDEN,
            "name": found.name if mine else HIDDEN,
            "user": found.user if mine else HIDDEN,
            "users": list(found.users) if mine else [],
            "until": found.end,
        }

    def _holder(self, run: Run | None) -> dict[str, str | None]:
        if run is None:
            return {"allocated_to": None, "user": None, "name": None}
        if not self._house.may_see(self._who, run):
            return {"allocated_to": HIDDEN, "user": HIDDEN, "name": HIDDEN}
        return {"allocated_to": run.id, "user": run.user, "name": run.spec.name}

    def _allocation(self, run: Run, gpus: Mapping[tuple[str, int], dict[str, Any]]) -> dict[str, Any]:
        """`gpus`: every GPU of the answer as its node shows it, by node and index."""
        assert run.attempt is not None
        holder = self._holder(run)
        return {
            "job_id": holder["allocated_to"],
            "gpus": [
                gpus[part.node, index]
                for part in run.attempt.placement
                for index in bits(part.gpus)
                if (part.node, index) in gpus
            ],
            "allocated_at": run.attempt.planned_at,
            "user": holder["user"],
        }


def _reserved_now(reservations: Iterable[Reservation], now: float) -> dict[tuple[str, int], Reservation]:
    return {
        (part.node, index): one
        for one in reservations
        if one.active(now)
        for part in one.placement
        for index in bits(part.gpus)
    }


def _holds(run: Run) -> bool:
    return run.attempt is not None and gpu_count(run.attempt.placement) > 0


def _status(node: Node, gpu: Gpu, run: Run | None) -> tuple[str, str]:
    """The word for it, and why where that is no good news."""
    if run is not None:
        return "allocated", gpu.why
    if not gpu.healthy:
        return "error", gpu.why
    if not node.alive:
        return "offline", "the node does not answer"
    if node.drained:
        return "offline", node.drain_why or "drained"
    return "available", ""
