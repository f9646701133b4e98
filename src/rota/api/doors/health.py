"""Is it up, is it ready, what is it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from rota.api.answers import Json
from rota.api.depends import HouseDep, KnownBy
from rota.api.faults import Fault, faults
from rota.api.router import Router

router = Router("health")


class Health(BaseModel):
    status: str
    service: str
    version: str
    workdir: str | None = None
    trouble: str | None = None


class Alive(BaseModel):
    status: str


def health_of(house: HouseDep, by: str) -> dict[str, Any]:
    """`service` is the name by which clients of this field know such a server."""
    answer = {"status": "ok", "service": "research-agent-server", "version": house.version}
    if by or not house.gate.closed:  # where on the disk we work is for those we know
        answer["workdir"] = house.workdir
    trouble = house.service.trouble()
    if trouble:
        answer["trouble"] = trouble
    return answer


@router.get("/health", summary="What this server is", responses={200: {"model": Health}, **faults()})
async def health(house: HouseDep, by: KnownBy) -> Json:
    return Json(health_of(house, by))


@router.get("/healthz", summary="Is the process up", responses={200: {"model": Alive}, **faults()})
async def healthz() -> Json:
    return Json({"status": "ok"})


@router.get(
    "/readyz",
    summary="Can it take work",
    responses={200: {"model": Alive}, **faults(), 503: {"model": Fault, "description": "Not now; `detail` says why."}},
)
async def readyz(house: HouseDep) -> Json:
    why = house.service.trouble()
    if why:
        return Json({"detail": why}, 503, {"Retry-After": "1"})
    return Json({"status": "ok"})
