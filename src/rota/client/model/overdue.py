"""Runs that hold GPUs although they should be gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rota.client.model.base import Wire, build, rows


@dataclass(frozen=True, slots=True)
class Overdue(Wire):
    """Times are epoch seconds."""

    raw: Mapping[str, Any]
    run_id: str = ""
    user: str = ""
    since: float | None = None
    until: float | None = None  # killed by then at the latest; None = nothing bounds it
    text: str = ""  # all of it in words, and what would end the run


def overdue(data: Any) -> tuple[Overdue, ...]:
    return tuple(build(Overdue, item) for item in rows(data or []))
