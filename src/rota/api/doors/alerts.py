"""Alerts: something a person, or an agent, should decide about a run."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from rota.api import once, person_answers
from rota.api.act import act
from rota.api.answers import Json
from rota.api.asked import Body
from rota.api.depends import Caller, DryRun, HouseDep, Key, seen
from rota.api.dry import marked
from rota.api.faults import faults
from rota.api.house import House
from rota.api.lookups import look_up
from rota.api.render.alert import AlertShape, alert_of
from rota.api.render.journey import AGENT, HUMAN
from rota.api.router import Router
from rota.api.shelf import Shelf
from rota.app.authz import Act, Principal, Role, authorise
from rota.app.commands import Draft, PutRecord
from rota.app.errors import NotFound
from rota.app.ports import Record

router = Router("alerts")
KIND = "alert"
RunId = Annotated[str, Path(max_length=200)]
Choice = Annotated[str, Field(min_length=1, max_length=500)]


class NewAlert(Body):
    message: Annotated[str, Field(min_length=1, max_length=10_000)]
    choices: Annotated[list[Choice], Field(max_length=50)] = Field(
        default_factory=list, examples=[["Ignore", "Stop Job"]]
    )
    severity: Literal["info", "warning", "critical"] = "warning"


class Raised(BaseModel):
    alert_id: str


class Answered(BaseModel):
    message: str


class Response(Body):
    choice: Annotated[str, Field(max_length=500)]
    seen: Annotated[str, Field(max_length=500)] | None = Field(
        None, description="The answer that this one is to replace. Needed where another person gave it."
    )


@router.post(
    "/runs/{run_id}/alerts", summary="Raise an alert", responses={200: {"model": Raised}, **faults(400, 404, 409)}
)
async def raise_alert(
    house: HouseDep, who: Caller, run_id: RunId, asked: NewAlert, key: Key = None, dry_run: DryRun = False
) -> Json:
    run = await look_up(house, who, seen, house, who, run_id)
    if not asked.choices:
        raise HTTPException(400, "At least one choice is required")
    body = {
        **asked.model_dump(),
        "timestamp": time.time(),
        "status": "pending",
        "response": None,
        "responded_at": None,
        "session_id": run.spec.labels.get("chat_session_id"),
        "user": run.user,
    }
    draft = Draft(KIND, once.name_for(f"alert {run_id}", who, key, 32), "", parent=run.id)
    record = await Shelf(house, who, run.user).add(draft, body, asked.model_dump(), key, dry_run)
    return Json(marked({"alert_id": record.id}, dry_run))


@router.get("/alerts", summary="Alerts, newest first", responses={200: {"model": list[AlertShape]}, **faults()})
def list_alerts(
    house: HouseDep,
    who: Caller,
    run_id: Annotated[str | None, Query(max_length=200)] = None,
    status: Literal["pending", "resolved"] | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    cursor: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
) -> Json:
    def wanted(record: Record) -> bool:
        return status is None or record.body.get("status") == status

    found, following = Shelf(house, who).page(KIND, limit, cursor, parent=run_id, wanted=wanted)
    headers = {"X-Next-Cursor": str(following)} if following is not None else None
    return Json([alert_of(record) for record in found], headers=headers)


@router.post(
    "/alerts/{alert_id}/respond",
    summary="Decide about an alert",
    responses={200: {"model": Answered}, **faults(400, 404, 409)},
)
async def respond(
    house: HouseDep,
    who: Caller,
    alert_id: Annotated[str, Path(max_length=200)],
    asked: Response,
    dry_run: DryRun = False,
) -> Json:
    """The first answer stays, unless its author gives another, or a person who names it in `seen`. An agent does not
    change a person's answer. The events keep all of them."""
    return await person_answers.answer(lambda raced: _respond(house, who, alert_id, asked, dry_run, raced=raced))


async def _respond(house: House, who: Principal, alert_id: str, asked: Response, dry_run: bool, *, raced: bool) -> Json:
    record = await look_up(house, who, _alert, house, who, alert_id)
    if asked.choice not in record.body["choices"]:
        known = ", ".join(map(repr, record.body["choices"]))
        raise HTTPException(400, f"choice: {asked.choice[:100]!r} is not one of {known[:1000]}")
    given = record.body["response"]
    authorise(who, Act.RECORD, record.body["user"])
    of_person = given is not None and record.body.get("actor", HUMAN) == HUMAN
    # a person who says the same as an agent makes it a person's answer, which stays
    if given != asked.choice or not (of_person or who.role is Role.AGENT):
        if of_person:
            first = person_answers.PersonAnswer(given, record.body.get("responded_by") or "")
            person_answers.must_have_seen(first, who, asked.seen, given, raced=raced)
        said = {"status": "resolved", "response": asked.choice, "responded_at": time.time()}
        said |= {"responded_by": who.name, "actor": AGENT if who.role is Role.AGENT else HUMAN}
        body: dict[str, Any] = {**record.body, **said}
        draft = Draft(KIND, record.id, json.dumps(body), parent=record.parent, seen=json.dumps(record.body))
        await act(house, who, PutRecord(draft, owner=record.body["user"]), dry_run)
    return Json(marked({"message": "Response recorded"}, dry_run))


def _alert(house: House, who: Principal, alert_id: str) -> Record:
    record = Shelf(house, who).find(KIND, alert_id)
    if record is None:
        raise NotFound("Alert not found", "alert_id")
    return record
