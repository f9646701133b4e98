"""What goes into a simulation and what comes out of it. All times are whole seconds from the trace's start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

HOUR_S = 3600
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Job:
    """One line of a trace. The scheduler is shown all of it but `duration_s`."""

    id: str
    submit_s: int
    duration_s: int  # the truth: how long it runs when nobody stops it
    gpus: int
    user: str = ""
    limit_s: int | None = None  # what its user declared; None = nothing
    priority: int = 2  # 1 low to 4 critical
    preemptible: bool = True
    command: str = ""  # what it runs, where that is known: runs alike are predicted from one another
    line: int = field(default=0, compare=False)  # where in its trace, for messages; 0 = it is from none


@dataclass(frozen=True, slots=True)
class Segment:
    """One attempt of a job, from start to end or stop, and the GPUs it held."""

    job: int  # index into Result.jobs
    attempt: int  # 1 is the first
    start_s: int
    end_s: int
    placement: tuple[tuple[str, int], ...]  # node, how many of its GPUs

    @property
    def gpus(self) -> int:
        return sum(count for _, count in self.placement)


@dataclass(frozen=True, slots=True)
class Result:
    """The schedule. A first attempt is all useful work; each later one begins with `preempt_cost_s` of restarting."""

    jobs: tuple[Job, ...]  # in the order of their submits
    gpus: int  # of the whole cluster
    segments: tuple[Segment, ...]  # in the order of their ends
    ends: tuple[int, ...]  # when each job was done
    stops: tuple[int, ...]  # how often each was preempted
    preempt_cost_s: int = 0
    gpus_of: tuple[tuple[str, int], ...] = ()  # node, its GPUs; in the cluster's order

    @property
    def waits(self) -> tuple[int, ...]:
        """Completion - submit - duration: time lost to stops counts as waiting."""
        return tuple(end - job.submit_s - job.duration_s for job, end in zip(self.jobs, self.ends, strict=True))

    @property
    def makespan_s(self) -> int:
        return max(self.ends, default=0)

    def useful_from(self, segment: Segment) -> int:
        """When the segment's restart was paid for and its work began; never after its end."""
        if segment.attempt == 1:
            return segment.start_s
        return min(segment.end_s, segment.start_s + self.preempt_cost_s)


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """By submit; jobs of one second keep the order they came in."""
    return sorted(jobs, key=lambda job: job.submit_s)
