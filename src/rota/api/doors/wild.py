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
    """Of runs that were not archived. `running` counts those that are being launched, so that nobody starts too many;
    `max_concurrent` is what is enforced: the policy's limit, or else the number of GPUs."""
    count, limit = house.service.tally().counts, house.service.policy().max_concurrent
    gpus = sum(len(node.gpus) for node in house.service.nodes().values())
    return Json(
        {
            "running": count[RunState.RUNNING] + count[RunState.STARTING],
            "queued": count[RunState.QUEUED] + count[RunState.HELD],
            "completed": count[RunState.SUCCEEDED],
            "failed": count[RunState.FAILED] + count[RunState.LOST],
            "total": sum(count.values()),
            "max_concurrent": limit or max(1, gpus),
        }
    )
