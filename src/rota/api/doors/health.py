"""Is it up, is it ready, what is it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from rota.api.answers import Json
from rota.api.depends import HouseDep, KnownBy
from rota.api.faults import Fault, faults
from rota.api.house import House
from rota.api.router import Router

router = Router("health")
UNTOLD = "the server cannot take work just now; ask with a token to be told why"


class Health(BaseModel):
    status: str
    service: str
    version: str
    workdir: str | None = None
    data_dir: str | None = None
    trouble: str | None = None
    warnings: list[str] | None = None


class Alive(BaseModel):
    status: str


def health_of(house: House, by: str) -> dict[str, Any]:
    """`service` is the name by which clients of this field know such a server."""
    answer: dict[str, Any] = {"status": "ok", "service": "research-agent-server", "version": house.version}
    if _may_know(house, by):
        answer["workdir"], answer["data_dir"] = house.workdir, str(house.settings.data_dir)
    trouble = trouble_of(house, by)
    if trouble:
        answer["trouble"] = trouble
    if _may_know(house, by) and (warnings := house.service.warnings()):
        answer["warnings"] = list(warnings)
    return answer


def trouble_of(house: House, by: str) -> str:
    """Say why nothing can be taken in just now; "" = all is well."""
    trouble = house.service.trouble()
    return trouble if not trouble or _may_know(house, by) else UNTOLD


def _may_know(house: House, by: str) -> bool:
    """Where on the disk we work, and how full it is, is for those we know."""
    return bool(by) or not house.gate.closed


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
async def readyz(house: HouseDep, by: KnownBy) -> Json:
    why = trouble_of(house, by)
    if why:
        return Json({"detail": why}, 503, {"Retry-After": "1"})
    return Json({"status": "ok"})
