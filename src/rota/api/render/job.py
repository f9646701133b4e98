"""A run in the words of the queue door, and the numbers over all of them.

A list may hold 10,000 jobs, and a run is an immutable value: each is encoded once and its bytes are kept for as long as
the run is that very value. Of a longer list the first are kept, and the rest are encoded again each time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, Field

from rota.api.answers import dumps
from rota.api.render.words import (
    JOB_WORDS,
    RUN_WORDS,
    error_of,
    gpu_names,
    placement_of,
    planned_at,
    started_at,
)
from rota.app.tally import Tally
from rota.core.argv import command_of
from rota.core.run import WAITING, Run, RunState

KEPT = 20_000  # jobs
KEPT_BYTES = 32 << 20


class Job(BaseModel):
    id: str
    run_id: str
    name: str
    user: str
    command: str
    gpu_count: int
    gpu_memory_gb: float
    priority: int
    state: str
    status: str
    held: bool
    submitted_at: float
    scheduled_at: float | None
    started_at: float | None
    completed_at: float | None
    estimated_duration_seconds: float | None
    retry_count: int
    max_retries: int
    error_message: str | None
    allocated_gpus: list[str] | None
    gpus: list[str]
    why: str
    preemptible: bool
    filler: bool
    stopping: bool = Field(False, description="It was asked to end, and still holds its GPUs.")
    queue_position: int | None = None


RESUMES_ITSELF = "The pause is no one's switch and ends when its cause is over: there is room on the disk again."


class Statistics(BaseModel):
    total_jobs: int
    queued: int
    held: int
    scheduled: int
    running: int
    completed: int
    failed: int
    canceled: int
    average_wait_time_seconds: float
    jobs_per_hour: float
    queue_capacity: int
    queue_utilization_percent: float


def job_of(run: Run) -> dict[str, Any]:
    spec, waiting = run.spec, run.state in WAITING
    places = gpu_names(placement_of(run))
    return {
        "id": run.id,
        "run_id": spec.labels.get("run_id") or run.id,
        "name": spec.name,
        "user": run.user,
        "command": command_of(spec.argv),
        "gpu_count": spec.request.gpus,
        "gpu_memory_gb": spec.request.gpu_memory_gb,
        "priority": run.priority,
        "state": JOB_WORDS[run.state],
        "status": RUN_WORDS[run.state],
        "held": run.state is RunState.HELD,
        "submitted_at": run.submitted_at,
        "scheduled_at": None if waiting else planned_at(run),
        "started_at": None if waiting else started_at(run),
        "completed_at": run.ended_at,
        "estimated_duration_seconds": spec.estimate_s,
        "retry_count": run.retries,
        "max_retries": spec.max_retries,
        "error_message": error_of(run),
        "allocated_gpus": places if run.attempt is not None else None,
        "gpus": [] if waiting else places,  # of one that has ended: where it was
        "why": run.why,
        "preemptible": spec.preemptible,
        "filler": spec.filler,
        "stopping": run.attempt is not None and run.attempt.stop is not None,
    }


class Jobs:
    """The bytes of jobs, in bounded memory. Used by several threads; a miss costs an encoding and nothing else."""

    def __init__(self) -> None:
        self._made: OrderedDict[str, tuple[Run, bytes]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def one(self, run: Run) -> bytes:
        known = self._made.get(run.id)
        if known is not None and known[0] is run:
            return known[1]
        text = dumps(job_of(run))
        with self._lock:
            before = self._made.get(run.id)
            self._made[run.id] = (run, text)
            self._size += len(text) - (len(before[1]) if before is not None else 0)
            while len(self._made) > KEPT or self._size > KEPT_BYTES:
                _, (_, dropped) = self._made.popitem(last=False)
                self._size -= len(dropped)
        return text

    def many(self, runs: Iterable[Run]) -> Iterator[bytes]:
        """Yield the text of each. To keep more than there is room for would drop what was kept before it is used, and
        an answer has two lists: what waits, and what runs. So one list has half of the room."""
        size = 0
        for number, run in enumerate(runs):
            text = self.one(run) if number < KEPT // 2 and size <= KEPT_BYTES // 2 else dumps(job_of(run))
            size += len(text)
            yield text


def statistics_of(tally: Tally, capacity: int) -> dict[str, Any]:
    """`running` counts what has its GPUs already, as the list of running jobs does; so nothing is ever `scheduled`."""
    count = tally.counts.get
    queued = count(RunState.QUEUED, 0)
    return {
        "total_jobs": sum(tally.counts.values()),
        "queued": queued,
        "held": count(RunState.HELD, 0),
        "scheduled": 0,
        "running": count(RunState.STARTING, 0) + count(RunState.RUNNING, 0),
        "completed": count(RunState.SUCCEEDED, 0),
        "failed": count(RunState.FAILED, 0) + count(RunState.LOST, 0),
        "canceled": count(RunState.CANCELLED, 0),
        "average_wait_time_seconds": round(tally.average_wait_s or 0.0, 3),
        "jobs_per_hour": float(tally.ended_last_hour),
        "queue_capacity": capacity,
        "queue_utilization_percent": round(100.0 * queued / capacity, 1),
    }
