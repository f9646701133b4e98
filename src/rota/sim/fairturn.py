"""fair_turns: how long a job could be asked to wait if everybody simply came in turn.

Fair turn = the GPU-seconds of jobs that came before it and are still unfinished when it comes, if all jobs are served
strictly in the order of their arrival, spread over all GPUs; plus its own duration, or ten minutes if that is more.
A wait far beyond it is starvation, whatever the mean says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from rota.core.node import Node
from rota.core.presets import named
from rota.sim.engine import Progress, simulate
from rota.sim.model import Job, in_order

LEAST_S = 600

STRICT = named("fcfs-strict")


def fair_turns(
    jobs: Iterable[Job], gpus: int, nodes: Sequence[Node], *, progress: Progress | None = None
) -> list[float]:
    """In the order of their submits, as in Result.jobs."""
    strict = simulate(jobs, nodes, STRICT, progress=progress)
    starts = [0] * len(strict.jobs)
    for segment in strict.segments:
        starts[segment.job] = segment.start_s
    turns, ahead = [], _Ahead()
    for job, start_s, end_s in zip(strict.jobs, starts, strict.ends, strict=True):
        turns.append(ahead.gpu_s(job.submit_s) / gpus + max(job.duration_s, LEAST_S))
        ahead.add(job, start_s, end_s)
    return turns


def fluid_turns(jobs: Iterable[Job], gpus: int) -> list[float]:
    """The same against a server that no cluster can be: it works off what has come at full speed, as if any job could
    use any number of GPUs. Harder to keep to, most of all where wide gangs leave GPUs idle."""
    turns, ahead_gpu_s, then = [], 0, 0
    for job in in_order(jobs):
        ahead_gpu_s = max(0, ahead_gpu_s - gpus * (job.submit_s - then))
        then = job.submit_s
        turns.append(ahead_gpu_s / gpus + max(job.duration_s, LEAST_S))
        ahead_gpu_s += job.gpus * job.duration_s
    return turns


class _Ahead:
    """Work that has come and is not done, in a schedule that is known."""

    def __init__(self) -> None:
        self.waiting_gpu_s = 0
        self.running_gpus = 0
        self.running_end_gpu_s = 0  # sum of GPUs x end: what runs has this less running_gpus x now to do
        self.moves: list[tuple[int, int, int, int]] = []  # when, GPUs, start, end

    def add(self, job: Job, start_s: int, end_s: int) -> None:
        self.waiting_gpu_s += job.gpus * job.duration_s
        heappush(self.moves, (start_s, job.gpus, start_s, end_s))

    def gpu_s(self, now: int) -> int:
        while self.moves and self.moves[0][0] <= now:
            when, gpus, start_s, end_s = heappop(self.moves)
            if when == start_s and end_s > start_s:
                self.waiting_gpu_s -= gpus * (end_s - start_s)
                self.running_gpus += gpus
                self.running_end_gpu_s += gpus * end_s
                heappush(self.moves, (end_s, gpus, -1, end_s))
            elif start_s < 0:
                self.running_gpus -= gpus
                self.running_end_gpu_s -= gpus * end_s
        return self.waiting_gpu_s + self.running_end_gpu_s - self.running_gpus * now
