"""Why is mine waiting, when will it start, and what did the code look like."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Request
from pydantic import BaseModel, Field

from rota.api.answers import Json
from rota.api.depends import Caller, HouseDep, seen
from rota.api.faults import faults
from rota.api.forecasts import foretell
from rota.api.house import House
from rota.api.render.overdue import OverdueShape
from rota.api.render.whole import hiding, overdue_before, waiting
from rota.api.render.words import RUN_WORDS
from rota.api.router import Router
from rota.app.authz import Principal
from rota.app.errors import NotFound
from rota.app.outlook import Prospect
from rota.core.run import WAITING

router = Router("runs")
RunId = Annotated[str, Path(max_length=200)]


class ReasonShape(BaseModel):
    code: str
    text: str
    runs: list[str]
    until: float | None


class Explained(BaseModel):
    run_id: str
    status: str
    reasons: list[ReasonShape]
    position: int | None
    hint: str
    eta: float | None = Field(
        description="If every run takes what is believed; `GET /runs/{run_id}/eta` says how likely that is (p50, p90)."
    )


class Sooner(BaseModel):
    change: str = Field(description="What would have to be asked for instead.")
    start: float
    sooner_seconds: float | None = Field(description="Null: as it is, no start can be told.")
    now: bool


class Expected(BaseModel):
    run_id: str
    status: str
    eta: float | None = Field(description="If every run takes what is believed.")
    seconds: float | None
    p50: float | None = Field(description="As likely as not it has started by then.")
    p90: float | None = Field(description="9 times of 10 it has started by then.")
    latest: float | None = Field(
        description="If everybody uses all of their time and nobody comes who goes first. Null: somebody in the way "
        "has no time limit, or was due to be killed and has not died."
    )
    scenarios: int = Field(description="Ways things may go that were tried.")
    confidence: str = Field(description="good, fair or rough; empty where nothing can be told.")
    rests_on: str = Field(alias="from", description="What the prediction rests on.")
    why: str = Field(description="Why no start can be told.")
    overdue: list[OverdueShape] = Field(description="Runs in the way that should be gone already.")
    alternatives: list[Sooner] = Field(description="What would start it sooner, best first; each was tried out.")


class WorkspaceShape(BaseModel):
    run_id: str
    commit: str
    branch: str
    dirty: bool
    diff: str | None = Field(None, description="What was not committed; absent for others than owner and admins.")
    left_out: list[str] | None = Field(
        None, description="Untracked files, the first 100, that `diff` does not hold: too large, or no text. As `diff`."
    )


@router.get("/runs/{run_id}/explain", summary="Why it waits", responses={200: {"model": Explained}, **faults(404)})
async def explain(house: HouseDep, who: Caller, run_id: RunId, request: Request) -> Json:
    """All reasons at once, the runs that stand in the way, and the smallest change that would start it sooner."""
    return await foretell(house.forecasts, who, request.scope, lambda: _explain(house, who, run_id))


def _explain(house: House, who: Principal, run_id: str) -> Json:
    run = seen(house, who, run_id)
    eta = house.service.eta(run_id) if run.state in WAITING else None
    why = waiting(house, who, house.service.explain(run_id), eta)
    return Json({"run_id": run_id, "status": RUN_WORDS[run.state], **why})


@router.get("/runs/{run_id}/eta", summary="When it will start", responses={200: {"model": Expected}, **faults(404)})
async def eta(house: HouseDep, who: Caller, run_id: RunId, request: Request) -> Json:
    """Epoch seconds, and seconds from now; null = it waits for nothing, or nothing that is known will start it (`why`).
    `p50` and `p90` come from running the scheduler forward over what runs like those in the way took before, corrected
    by how earlier predictions did (`GET /calibration`)."""
    return await foretell(house.forecasts, who, request.scope, lambda: _eta(house, who, run_id))


def _eta(house: House, who: Principal, run_id: str) -> Json:
    run = seen(house, who, run_id)
    waits = run.state in WAITING
    at = house.service.eta(run_id) if waits else None
    left = None if at is None else max(0.0, at - house.service.view().at)
    prospect = house.service.prospect(run_id) if waits else Prospect(0.0)
    odds = prospect.odds
    return Json(
        {
            "run_id": run_id,
            "status": RUN_WORDS[run.state],
            "eta": at,
            "seconds": left,
            "p50": odds.p50,
            "p90": odds.p90,
            "latest": house.service.latest(run_id) if waits else None,
            "scenarios": odds.scenarios,
            "confidence": odds.confidence,
            "from": odds.rests_on,
            "why": hiding(house, who, run_id, prospect.why),
            "overdue": overdue_before(house, who, run) if waits else [],
            "alternatives": [
                {"change": one.words, "start": one.start, "sooner_seconds": one.sooner_s, "now": one.now}
                for one in (house.service.alternatives(run_id) if waits else ())
            ],
        }
    )


@router.get(
    "/runs/{run_id}/workspace",
    summary="The code it was submitted from",
    responses={200: {"model": WorkspaceShape}, **faults(404)},
)
def workspace(house: HouseDep, who: Caller, run_id: RunId) -> Json:
    """Commit, branch and whether there were changes. The changes themselves and values of variables are for the run's
    owner, with the own agents, and for admins: other callers get none of `diff`, `left_out` and `env`."""
    run = seen(house, who, run_id)
    record = house.service.record("workspace", run_id)
    if record is None:
        raise NotFound("No workspace was recorded for this run", "run_id")
    body: dict[str, Any] = {"run_id": run_id, **record.body}
    env = body.pop("env", {})
    body["env_names"] = sorted(env)
    if house.may_see_secrets(who, run):
        body["env"] = env
    else:
        body.pop("left_out", None)
        body.pop("diff", None)  # may hold anything of the checkout: keys, unpublished work, names of files
    return Json(body)
