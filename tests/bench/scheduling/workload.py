"""Which jobs on which cluster: the traces by name, and what is said of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rota.core.node import Node
from rota.sim.cluster import read_cluster
from rota.sim.many import Question
from rota.sim.model import Job
from rota.sim.trace import BadTrace, check_fits, read_trace
from tests.bench.scheduling import synthetic


@dataclass(frozen=True, slots=True)
class Place:
    """Some jobs and where they run. `path` = "" for those that are made here."""

    name: str
    nodes: str
    path: str = ""
    once: bool = False  # one run of the jobs as they are, for it takes long

    @property
    def made_up(self) -> bool:
        return not self.path

    def cluster(self) -> tuple[Node, ...]:
        return read_cluster(self.nodes)


TEAMS = (("team16_week", "2x8"), ("team16_2weeks", "2x8"), ("team16_gang", "2x8"))
LARGE = ("philly_3weeks", "72x8")


def places(traces: Path, *, large: bool) -> list[Place]:
    """All that there is to play. A trace that is missing or wrong ends it here."""
    found = [Place(name, nodes, str(traces / f"{name}.csv")) for name, nodes in TEAMS]
    if large:
        found.append(Place(*LARGE, str(traces / f"{LARGE[0]}.csv"), once=True))
    for one in found:
        try:
            check_fits(as_they_are(one), one.cluster(), one.path)
        except BadTrace as error:
            raise SystemExit(f"{error}\n{HOW}") from None
    return found + [Place(kind.name, kind.nodes) for kind in synthetic.KINDS]


HOW = "TRACES=DIR names the folder with the trace files; docs/SCHEDULING.md says where they come from"


@lru_cache(maxsize=8)
def as_they_are(place: Place) -> tuple[Job, ...]:
    return tuple(read_trace(place.path)) if place.path else ()


@lru_cache(maxsize=6)
def jobs(place: Place, declared: str, number: int, seed: int) -> tuple[Job, ...]:
    """The n-th shake, declared; 0 = as they are. Just as `rota simulate --shakes N --seed S` has them. Of what is made
    up, the n-th is another trace of its kind."""
    base = synthetic.make(place.name, seed + number) if place.made_up else as_they_are(place)
    question = Question(tuple(base), (), (), declared=declared, seed=seed + number if place.made_up else seed)
    return tuple(question.shaken(0 if place.made_up else number))


def facts(some: Sequence[Job], place: Place) -> dict[str, float | str]:
    """What the document says of a trace."""
    gpus = sum(len(node.gpus) for node in place.cluster())
    work = sorted((job.gpus * job.duration_s for job in some), reverse=True)
    heavy, count = 0, 0
    while heavy < 0.95 * sum(work):
        heavy += work[count]
        count += 1
    return {
        "nodes": place.nodes,
        "jobs": len(some),
        "users": len({job.user for job in some}),
        "load": sum(work) / (gpus * max(job.submit_s for job in some)),
        "short": sum(job.duration_s <= 600 for job in some) / len(some),
        "wide": sum(job.gpus >= 8 for job in some),
        "heavy": count,  # jobs that hold 95 % of the work
    }
