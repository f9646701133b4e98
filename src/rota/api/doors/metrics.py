"""Metric rows of runs, as training scripts post them and charts read them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from rota.api.answers import Json
from rota.api.asked import Body
from rota.api.depends import Caller, DryRun, HouseDep, seen
from rota.api.dry import marked
from rota.api.faults import faults
from rota.api.house import House
from rota.api.lookups import look_up
from rota.api.render.series import Charts, charts
from rota.api.router import Router
from rota.app.authz import Act, Principal, authorise
from rota.app.errors import Full
from rota.core.run import Run

router = Router("metrics")
MOST_ROWS = 10_000
RunId = Annotated[str, Path(max_length=200)]


class Rows(Body):
    rows: Annotated[list[dict[str, Any]], Field(max_length=MOST_ROWS)] = Field(
        default_factory=list, examples=[[{"step": 1, "loss": 0.5}]]
    )


class Appended(BaseModel):
    appended: int


@router.post(
    "/runs/{run_id}/metrics", summary="Add metric rows", responses={200: {"model": Appended}, **faults(400, 404)}
)
async def append(house: HouseDep, who: Caller, run_id: RunId, asked: Rows, dry_run: DryRun = False) -> Json:
    """Numbers are kept if they are finite, texts if they are short. `step` (or `_step`, `global_step`, `epoch`) says
    where a row stands."""
    run = await look_up(house, who, seen, house, who, run_id)
    authorise(who, Act.REPORT, run.user)
    if not asked.rows:
        raise HTTPException(400, "'rows' must be a non-empty array")
    count = await look_up(house, who, _keep, house, who, run, [] if dry_run else asked.rows)
    if asked.rows and not (dry_run or count):
        raise Full(f"no row was kept: the metrics of run {run.id} have reached the limit of one run")
    count = len(asked.rows) if dry_run else count
    return Json(marked({"appended": count}, dry_run))


def _keep(house: House, who: Principal, run: Run, rows: list[dict[str, Any]]) -> int:
    house.service.must_take_metrics(who, run)
    if not rows:
        return 0
    count = house.samples.append(run.id, rows)
    house.service.took_metrics(run, house.samples.size(run.id))
    return count


@router.get("/runs/{run_id}/metrics", summary="A run's metrics", responses={200: {"model": Charts}, **faults(404)})
def series(house: HouseDep, who: Caller, run_id: RunId) -> Json:
    """At most 400 points of at most 200 keys, thinned out evenly; `{}` where there are none."""
    return Json(charts(house.samples.series(seen(house, who, run_id).id)))
