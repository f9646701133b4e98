"""How busy the house is, in the six numbers that agents ask for before they start anything."""

from __future__ import annotations

from pydantic import BaseModel

from rota.api.answers import Json
from rota.api.depends import HouseDep
from rota.api.faults import faults
from rota.api.router import Router
from rota.core.run import RunState

router = Router("agents")


class Busy(BaseModel):
    running: int
    queued: int
    completed: int
    failed: int
    total: int
    max_concurrent: int


@router.get("/wild/v2/system-health", summary="How busy it is", responses={200: {"model": Busy}, **faults()})
def system_health(house: HouseDep) -> Json:
    """Of runs that were not archived. `running` counts those that are being launched, so that nobody starts too many,
    but none that are only reported from elsewhere, which take no place here; `max_concurrent` is what is enforced: the
    policy's limit, or else the number of GPUs."""
    tally, limit = house.service.tally(), house.service.policy().max_concurrent
    count = tally.counts
    gpus = sum(len(node.gpus) for node in house.service.nodes().values())
    return Json(
        {
            "running": max(0, count[RunState.RUNNING] + count[RunState.STARTING] - tally.elsewhere),
            "queued": count[RunState.QUEUED] + count[RunState.HELD],
            "completed": count[RunState.SUCCEEDED],
            "failed": count[RunState.FAILED] + count[RunState.LOST],
            "total": sum(count.values()),
            "max_concurrent": limit or max(1, gpus),
        }
    )
