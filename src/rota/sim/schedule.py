"""write_schedule: every attempt with its place and time, so that anyone can check a simulation."""

from __future__ import annotations

import csv
from pathlib import Path

from rota.sim.model import Result

COLUMNS = ("job_id", "attempt", "start_s", "end_s", "placement")


def write_schedule(result: Result, path: str | Path) -> None:
    """By start; the placement is `node:count` joined by `;`."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for one in sorted(result.segments, key=lambda one: (one.start_s, one.job, one.attempt)):
            placement = ";".join(f"{node}:{count}" for node, count in one.placement)
            rows.writerow((result.jobs[one.job].id, one.attempt, one.start_s, one.end_s, placement))
