"""A sweep: one base command over a grid of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rota.client.model.base import Wire, build, rows, table, words


@dataclass(frozen=True, slots=True)
class Sweep(Wire):
    raw: Mapping[str, Any]
    id: str
    name: str = ""
    base_command: str = ""
    status: str = ""  # draft pending running completed failed canceled
    run_ids: tuple[str, ...] = ()
    parameters: Mapping[str, Any] | None = None
    progress: Mapping[str, Any] | None = None  # counts: total completed failed running launching ready queued canceled
    created_at: float | None = None
    ignored: tuple[str, ...] = ()  # fields of the request that the server did not know, each with a hint
    dry_run: bool = False


def sweep(data: Any) -> Sweep:
    data = table(data)
    if not isinstance(data["id"], str):
        raise TypeError("id should be str")
    return build(
        Sweep,
        data,
        id=data["id"],
        run_ids=words(data.get("run_ids")),
        ignored=words(data.get("ignored")),
        parameters=table(data.get("parameters") or {}),
        progress=table(data.get("progress") or {}),
    )


def sweeps(data: Any) -> list[Sweep]:
    return [sweep(item) for item in rows(data)]
