"""The machines, one by one: their GPUs, who holds them, and taking a machine out of service."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rota.api.act import act
from rota.api.answers import Json
from rota.api.asked import Exact
from rota.api.depends import Caller, DryRun, HouseDep
from rota.api.dry import marked
from rota.api.faults import faults
from rota.api.render.gpus import GpuStatus, NodeStatus, Picture
from rota.api.router import Router
from rota.app.commands import Drain, Undrain
from rota.core.node import Node

router = Router("nodes")


class Why(Exact):
    why: Annotated[str, Field(max_length=1000, description="A word for those who look.")] = ""


class Switched(NodeStatus):
    dry_run: bool | None = None


@router.get("/nodes", summary="Every machine and its GPUs", responses={200: {"model": list[NodeStatus]}, **faults()})
def nodes(house: HouseDep, who: Caller) -> Json:
    picture = Picture(house, who)
    return Json([picture.node(node) for node in picture.view.nodes.values()])


@router.get("/gpus", summary="Every GPU, and who holds it", responses={200: {"model": list[GpuStatus]}, **faults()})
def gpus(house: HouseDep, who: Caller) -> Json:
    picture = Picture(house, who)
    return Json([picture.gpu(node, gpu) for node in picture.view.nodes.values() for gpu in node.gpus])


@router.post(
    "/nodes/{node_id}/drain",
    summary="Give a machine nothing new",
    responses={200: {"model": Switched}, **faults(404)},
)
async def drain(house: HouseDep, who: Caller, node_id: str, body: Why | None = None, dry_run: DryRun = False) -> Json:
    """What runs there runs on. May be called again and again; the first reason stays."""
    why = body.why if body is not None else ""
    node: Node = await act(house, who, Drain(node_id, why), dry_run)
    return Json(marked(Picture(house, who).node(node), dry_run))


@router.post(
    "/nodes/{node_id}/undrain",
    summary="Take a machine back into service",
    responses={200: {"model": Switched}, **faults(404)},
)
async def undrain(house: HouseDep, who: Caller, node_id: str, dry_run: DryRun = False) -> Json:
    node: Node = await act(house, who, Undrain(node_id), dry_run)
    return Json(marked(Picture(house, who).node(node), dry_run))
