"""GPUs that are kept for somebody for a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rota.client.model.base import Wire, build, rows, table, words
from rota.client.model.overdue import Overdue, overdue


@dataclass(frozen=True, slots=True)
class Reservation(Wire):
    """Times are epoch seconds."""

    raw: Mapping[str, Any]
    id: str
    name: str = ""
    user: str = ""
    users: tuple[str, ...] = ()  # who may use it besides its owner
    state: str = ""  # upcoming active
    start: float = 0.0
    end: float = 0.0
    gpus: int = 0
    nodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # the numbers of its GPUs on each node
    out_of_service: tuple[str, ...] = ()  # "node:number"
    ready_at: float | None = None  # when all of it is expected to be free: its start, or later
    blocked_by: tuple[str, ...] = ()  # runs expected to hold some of it longer
    never_ready: int = 0  # of its GPUs, expected to be held by others until it is over
    overdue: tuple[Overdue, ...] = ()  # of those, the ones that should be gone
    runs: tuple[str, ...] = ()  # live ones that use it
    run_count: int = 0
    dry_run: bool = False


def reservation(data: Any) -> Reservation:
    data = table(data)
    if not isinstance(data["id"], str):
        raise TypeError("id should be str")
    lists = {name: words(data.get(name)) for name in ("users", "out_of_service", "blocked_by", "runs")}
    return build(
        Reservation,
        data,
        id=data["id"],
        nodes=_nodes(data.get("nodes") or {}),
        overdue=overdue(data.get("overdue")),
        **lists,
    )


def reservations(data: Any) -> list[Reservation]:
    return [reservation(item) for item in rows(data)]


def _nodes(data: Any) -> dict[str, tuple[int, ...]]:
    return {node: tuple(int(number) for number in rows(numbers)) for node, numbers in table(data).items()}
