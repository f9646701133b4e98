"""Who used what."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel

from rota.api.answers import Json
from rota.api.depends import Caller, HouseDep
from rota.api.faults import faults
from rota.api.router import Router

router = Router("usage")
MONTH_S = 30 * 86400.0
Moment = Annotated[float | None, Query(ge=0, le=1e11, description="Epoch seconds.")]


class Used(BaseModel):
    user: str
    attempts: int
    gpu_seconds: float
    gpu_hours: float


class Usage(BaseModel):
    since: float
    until: float
    users: list[Used]
    total_gpu_seconds: float


@router.get("/usage", summary="GPU-hours per person", responses={200: {"model": Usage}, **faults()})
def usage(house: HouseDep, who: Caller, since: Moment = None, until: Moment = None) -> Json:
    """Of attempts that ended in this time; by default the last 30 days."""
    end = house.service.now() if until is None else until
    begin = end - MONTH_S if since is None else since
    totals = house.service.totals(begin, end)
    users = [
        {"user": one.user, "attempts": one.attempts, "gpu_seconds": one.gpu_s, "gpu_hours": one.gpu_s / 3600}
        for one in totals
        if house.may_see_of(who, one.user)
    ]
    return Json({"since": begin, "until": end, "users": users, "total_gpu_seconds": sum(one.gpu_s for one in totals)})
