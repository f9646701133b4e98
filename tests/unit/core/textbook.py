"""FCFS, first fit down the queue, and EASY backfill, written from their definitions and from nothing else.

Deliberately slow and plain: GPUs are counted, not named; every pass starts from scratch. EASY is Mu'alem and
Feitelson's: the head's shadow time is when enough will have ended for it, the extra GPUs are those it will leave over
then; a later job may start if it is done by the shadow time, or uses only extra GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    arrives: float
    gpus: int
    takes: float


@dataclass(frozen=True)
class Busy:
    end: float
    node: int
    gpus: int


def starts(jobs: list[Job], nodes: list[int], rule: str) -> dict[Job, float]:
    """When each job starts. `rule` is none, skip or easy; jobs fit on one node; no two moments coincide."""
    free = list(nodes)
    busy: list[Busy] = []
    queue: list[Job] = []
    coming = sorted(jobs, key=lambda job: job.arrives)
    started: dict[Job, float] = {}
    while coming or busy:
        now = min([job.arrives for job in coming[:1]] + [one.end for one in busy])
        for one in [one for one in busy if one.end <= now]:
            busy.remove(one)
            free[one.node] += one.gpus
        while coming and coming[0].arrives <= now:
            queue.append(coming.pop(0))

        def start(job: Job, node: int, now: float = now) -> None:
            queue.remove(job)
            free[node] -= job.gpus
            busy.append(Busy(now + job.takes, node, job.gpus))
            started[job] = now

        for job in list(queue):
            node = best_fit(free, job.gpus)
            if node is not None:
                start(job, node)
            elif rule != "skip":
                break
        if rule == "easy" and queue:
            fill_in(queue, free, busy, now, start)
    return started


def fill_in(queue, free, busy, now, start) -> None:
    shadow, where, extra = shadow_of(queue[0], free, busy)
    for job in queue[1:]:
        if now + job.takes <= shadow:
            node = best_fit(free, job.gpus)
            if node is not None:
                start(job, node)
            continue
        beside = list(free)
        beside[where] = min(free[where], extra)
        node = best_fit(beside, job.gpus)
        if node is not None:
            start(job, node)
            extra -= job.gpus if node == where else 0


def shadow_of(head: Job, free: list[int], busy: list[Busy]) -> tuple[float, int, int]:
    """(when the head can start, on which node, how many GPUs it leaves over there)"""
    later = list(free)
    for one in sorted(busy, key=lambda one: one.end):
        later[one.node] += one.gpus
        node = best_fit(later, head.gpus)
        if node is not None:
            return one.end, node, later[node] - head.gpus
    raise AssertionError("a job that fits nowhere")


def best_fit(free: list[int], gpus: int) -> int | None:
    fitting = [(count, node) for node, count in enumerate(free) if count >= gpus]
    return min(fitting)[1] if fitting else None
