"""The machines, the queue over them, and who used what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rota.client.model.base import Wire, build, rows, table, words


@dataclass(frozen=True, slots=True)
class Gpu(Wire):
    raw: Mapping[str, Any]
    node_id: str = ""
    gpu_id: int = 0
    type: str = ""
    memory_total_gb: float = 0.0
    utilization_percent: float | None = None
    temperature_celsius: float | None = None
    status: str = ""  # available allocated offline error
    allocated_to: str | None = None  # a run
    user: str | None = None  # whose run that is
    name: str | None = None  # of that run
    why: str = ""  # where it cannot be given out


@dataclass(frozen=True, slots=True)
class Node(Wire):
    raw: Mapping[str, Any]
    node_id: str = ""
    hostname: str = ""
    gpu_type: str | None = None
    gpu_count: int = 0
    gpus: tuple[Gpu, ...] = ()
    cpus: int | None = None
    memory_gb: float | None = None
    simulated: bool = False
    drained: bool = False
    drain_why: str = ""
    alive: bool = True
    enforced: tuple[str, ...] | None = None  # of memory_gb, cpus, processes: those that are limits there


@dataclass(frozen=True, slots=True)
class Capacity(Wire):
    """How many more runs make sense now, and the numbers that come from: g GPUs, r running, q waiting."""

    raw: Mapping[str, Any]
    g: int = 0
    r: int = 0
    q: int = 0
    max_new_runs: int = 0


@dataclass(frozen=True, slots=True)
class Job(Wire):
    """A run in the words of the queue."""

    raw: Mapping[str, Any]
    id: str
    name: str = ""
    run_id: str | None = None  # the submitter's own label
    user: str = ""
    command: str = ""
    gpu_count: int = 0
    priority: int = 2
    state: str = ""  # queued scheduled allocating running completed failed canceled
    submitted_at: float | None = None
    started_at: float | None = None
    completed_at: float | None = None
    estimated_duration_seconds: float | None = None
    scheduled_at: float | None = None
    why: str = ""
    allocated_gpus: tuple[str, ...] = ()
    queue_position: int | None = None  # from 1; None where it does not wait, or was not asked for

    @property
    def waiting(self) -> bool:
        return self.state in ("queued", "scheduled")

    @property
    def ended(self) -> bool:
        return self.state in ("completed", "failed", "canceled")


@dataclass(frozen=True, slots=True)
class Queue(Wire):
    """What waits, in order, and what runs."""

    raw: Mapping[str, Any]
    queued: tuple[Job, ...] = ()
    running: tuple[Job, ...] = ()
    statistics: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Usage(Wire):
    """What one person used."""

    raw: Mapping[str, Any]
    user: str = ""
    attempts: int = 0
    gpu_seconds: float = 0.0
    gpu_hours: float = 0.0


def nodes(data: Any) -> list[Node]:
    return [node(item) for item in _listed(data, "nodes")]


def node(data: Any) -> Node:
    gpus = tuple(build(Gpu, item) for item in rows(table(data).get("gpus") or []))
    known = table(data).get("enforced")
    return build(Node, data, gpus=gpus, enforced=None if known is None else words(known))


def capacity(data: Any) -> Capacity:
    return build(Capacity, data)


def job(data: Any) -> Job:
    given = table(data)["id"]
    if not isinstance(given, str):
        raise TypeError("id should be str")
    return build(Job, data, id=given, allocated_gpus=words(data.get("allocated_gpus")))


def queue(data: Any) -> Queue:
    data = table(data)
    return build(
        Queue,
        data,
        queued=tuple(map(job, rows(data["queued"]))),
        running=tuple(map(job, rows(data["running"]))),
        statistics=table(data.get("statistics") or {}),
    )


def usage(data: Any) -> list[Usage]:
    return [build(Usage, item) for item in _listed(data, "users")]


def _listed(data: Any, name: str) -> list[Any]:
    return rows(data[name] if isinstance(data, dict) else data)
