"""The GPU door: what there is, who holds it; and the shape of a cluster that is only simulated."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from rota.api.act import act
from rota.api.answers import Json
from rota.api.asked import Making
from rota.api.depends import Caller, DryRun, HouseDep, Strict
from rota.api.dry import IGNORED, marked
from rota.api.faults import faults
from rota.api.render.gpus import ClusterStatus, Picture
from rota.api.render.job import Statistics, statistics_of
from rota.api.router import Router
from rota.app.commands import Reshape
from rota.app.errors import Invalid

router = Router("gpu")

NODES, GPUS = 2, 8  # as older servers of this field start with
MOST_GPUS = 4096  # in all: every look at the cluster shows each of them
Nodes = Annotated[int, Field(ge=1, le=5000)]
Gpus = Annotated[int, Field(ge=1, le=64)]


class Shape(Making):
    node_count: Nodes | None = None
    gpus_per_node: Gpus | None = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"node_count": 2, "gpus_per_node": 8}]})


class Status(BaseModel):
    cluster_status: ClusterStatus
    queue_stats: Statistics


class Initialized(BaseModel):
    message: str
    cluster_status: ClusterStatus
    dry_run: bool | None = None
    ignored: list[str] | None = Field(None, description=IGNORED)


@router.get("/gpu/status", summary="Every GPU and who holds it", responses={200: {"model": Status}, **faults()})
def status(house: HouseDep, who: Caller) -> Json:
    numbers = statistics_of(house.service.tally(), house.settings.queue_capacity)
    return Json({"cluster_status": Picture(house, who).cluster(), "queue_stats": numbers})


@router.post(
    "/gpu/initialize", summary="Reshape a simulated cluster", responses={200: {"model": Initialized}, **faults(409)}
)
async def initialize(
    *,
    house: HouseDep,
    who: Caller,
    body: Shape | None = None,
    node_count: Annotated[Nodes | None, Query()] = None,
    gpus_per_node: Annotated[Gpus | None, Query()] = None,
    dry_run: DryRun = False,
    strict: Strict = False,
) -> Json:
    """Numbers in the body or in the query; the body wins. Only a simulated cluster has a shape to give, and only while
    nothing runs on it: 409 otherwise."""
    asked = body or Shape()
    ignored = asked.ignored(strict)
    nodes = asked.node_count or node_count or NODES
    gpus = asked.gpus_per_node or gpus_per_node or GPUS
    if nodes * gpus > MOST_GPUS:
        wrong = f"{nodes} nodes of {gpus} GPUs are {nodes * gpus} GPUs; use at most {MOST_GPUS} in all"
        raise Invalid(f"node_count: {wrong}", "node_count")
    shape = await act(house, who, Reshape(nodes, gpus), dry_run)
    answer = {"message": "GPU cluster initialized", "cluster_status": Picture(house, who).cluster(shape)}
    return Json(marked(answer, dry_run, ignored))
