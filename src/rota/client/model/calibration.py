"""How predictions did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rota.client.model.base import Wire, build, rows, table


@dataclass(frozen=True, slots=True)
class StartRow(Wire):
    """Predictions of starts, of one horizon."""

    raw: Mapping[str, Any]
    horizon: str = ""
    count: int = 0
    by_p50: float | None = None  # share that had started by then; 0.5 is right
    by_p90: float | None = None
    error_s: float | None = None  # half of them were nearer to the p50 than this


@dataclass(frozen=True, slots=True)
class RuntimeRow(Wire):
    """Expected times of runs, by where they came from."""

    raw: Mapping[str, Any]
    source: str = ""
    count: int = 0
    within: float | None = None  # share that took no longer
    ratio: float | None = None  # taken over expected, the middle one


@dataclass(frozen=True, slots=True)
class Calibration(Wire):
    """What was foretold, held against what happened. The first row of each is all together."""

    raw: Mapping[str, Any]
    pending: int = 0  # predictions whose run still waits
    starts: tuple[StartRow, ...] = ()
    runtimes: tuple[RuntimeRow, ...] = ()


def calibration(data: Any) -> Calibration:
    starts = tuple(build(StartRow, item) for item in rows(table(data).get("starts") or []))
    runtimes = tuple(build(RuntimeRow, item) for item in rows(data.get("runtimes") or []))
    return build(Calibration, data, starts=starts, runtimes=runtimes)
