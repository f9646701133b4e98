"""How many more runs make sense now. It is advice, with the numbers it came from; what is enforced is the ledger: never
more than the GPUs that are really free, whatever type of cluster somebody set by hand."""

from __future__ import annotations

from fastapi import Request
from pydantic import BaseModel, Field

from rota.api.answers import Json
from rota.api.depends import Caller, HouseDep
from rota.api.faults import faults
from rota.api.router import Router
from rota.api.survey import KIND, MANUAL, survey_of
from rota.core.run import RunState

router = Router("capacity")

FORMULA = "max_new_runs = max(0, min(q, g - r))"
WITHOUT_GPUS = ("cpu_only", "unknown")
GUESS = {"slurm": 4}  # of a cluster's GPUs where nobody has counted them; 1 elsewhere


class Capacity(BaseModel):
    g: int = Field(description="How many runs can make use of this cluster at a time.")
    r: int = Field(
        description="Runs that are running or being launched here. One that is only reported holds nothing here."
    )
    q: int = Field(description="Runs that are ready or queued.")
    max_new_runs: int = Field(
        description="How many of those that are ready or queued already to let go now, counted as if each run had one "
        "GPU: with runs of several, fewer can start (`free_gpus`). 0 where none waits, however many GPUs are free."
    )
    formula: str
    cluster_type: str
    gpu_count: int | None
    running: int
    ready: int
    queued: int
    free_gpus: int
    total_gpus: int
    paused: bool = Field(description="Nothing is started, whatever the numbers say; `pause_why` says why.")
    pause_why: str


def places(cluster_type: str, gpu_count: int | None) -> int:
    if cluster_type in WITHOUT_GPUS:
        return 1
    return max(1, gpu_count or GUESS.get(cluster_type, 1))


@router.get("/capacity", summary="How many more runs make sense now", responses={200: {"model": Capacity}, **faults()})
def capacity(house: HouseDep, who: Caller, request: Request) -> Json:
    """`max_new_runs` counts runs that are ready or queued already: it says how many of them to let go now, not how many
    could be added. For that see `free_gpus`; what is submitted beyond it waits."""
    cluster = survey_of(request).cluster(house, house.service.record(KIND, MANUAL))
    count, view = house.service.tally().counts, house.service.view()
    ready, queued = count.get(RunState.HELD, 0), count.get(RunState.QUEUED, 0)
    # The tally counts runs that are only reported from elsewhere, too: those hold no GPU of this cluster.
    running = sum(run.archived_at is None and not run.is_elsewhere for run in view.active())
    g, q = places(cluster["type"], cluster["gpu_count"]), ready + queued
    return Json(
        {
            "g": g,
            "r": running,
            "q": q,
            "max_new_runs": max(0, min(q, g - running)),
            "formula": FORMULA,
            "cluster_type": cluster["type"],
            "gpu_count": cluster["gpu_count"],
            "running": running,
            "ready": ready,
            "queued": queued,
            "free_gpus": view.free_gpus(),
            "total_gpus": view.total_gpus(),
            "paused": view.paused,
            "pause_why": view.pause_why,
        }
    )
