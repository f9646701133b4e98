"""One look at the server: everything that the screen shows of one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rota.client.errors import NotFound
from rota.client.model.cluster import Job, Node
from rota.client.model.run import Explanation, Run
from rota.client.sync import Client

EXPLAINED = 8  # waiting runs whose reason is looked up with each look; the others' when they move up
MINE = 50


@dataclass(frozen=True)
class Look:
    at: float
    me: str
    nodes: tuple[Node, ...] = ()
    queued: tuple[Job, ...] = ()
    mine: tuple[Run, ...] = ()
    why: Mapping[str, Explanation] = field(default_factory=dict)  # by run


def look(client: Client, at: float, me: str = "") -> Look:
    """`me` is asked for once and then given: nobody changes into somebody else."""
    me = me or client.whoami().name
    queued = client.queue().queued
    why = {}
    for job in queued[:EXPLAINED]:
        try:
            why[job.id] = client.explain(job.id)
        except NotFound:
            continue  # it started in between
    return Look(at, me, tuple(client.nodes()), queued, tuple(client.runs(user=me, limit=MINE)), why)
