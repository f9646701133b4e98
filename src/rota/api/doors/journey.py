"""The journey: what was tried, recommended and decided, from the events of runs and what people and agents add."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from rota.api import once
from rota.api.act import act
from rota.api.answers import Json
from rota.api.asked import Body, Free, Word
from rota.api.depends import Caller, DryRun, HouseDep, Key
from rota.api.diary import happened
from rota.api.dry import marked
from rota.api.faults import faults
from rota.api.house import House
from rota.api.render.journey import posted, summary
from rota.api.shelf import Shelf
from rota.app.authz import Principal
from rota.app.commands import Draft, PutRecord
from rota.app.errors import Invalid, NotFound
from rota.app.ports import Record

router = APIRouter(tags=["journey"])
EVENT, ADVICE, DECISION = "journey", "recommendation", "decision"
PREFIX = {EVENT: "jevt", ADVICE: "jrec", DECISION: "jdec"}
RESPONSES = ("accepted", "rejected", "modified", "executed", "dismissed")
Long = Annotated[str, Field(max_length=10_000)]
Title = Annotated[str, Field(min_length=1, max_length=1000)]
Which = Annotated[str | None, Query(max_length=500)]


class Entry(Body):
    session_id: Word | None = None
    run_id: Word | None = None
    chart_id: Word | None = None


class NewEvent(Entry):
    kind: Annotated[str, Field(min_length=1, max_length=200)]
    actor: Word | None = Field(None, description="Default: the caller.")
    recommendation_id: Word | None = None
    decision_id: Word | None = None
    note: Long | None = None
    metadata: Free | None = None
    timestamp: Annotated[float, Field(ge=0, le=1e11)] | None = None


class NewAdvice(Entry):
    title: Title
    action: Long = ""
    rationale: Long | None = None
    source: Word = "agent"
    priority: Literal["low", "medium", "high", "critical"] = "medium"
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    evidence_refs: Annotated[list[Word], Field(max_length=20)] = Field(default_factory=list)


class AdviceResponse(Body):
    status: Word
    user_note: Long | None = None
    modified_action: Long | None = None


class NewDecision(Entry):
    title: Title
    chosen_action: Long = ""
    rationale: Long | None = None
    outcome: Long | None = None
    status: Literal["recorded", "executed", "superseded"] = "recorded"
    recommendation_id: Word | None = None


class Happening(BaseModel):
    id: str
    kind: str
    actor: str
    session_id: str | None
    run_id: str | None
    note: str | None
    metadata: dict[str, Any]
    timestamp: float


class Noted(BaseModel):
    id: str
    title: str
    status: str
    session_id: str | None
    run_id: str | None
    created_at: float
    updated_at: float


class Loop(BaseModel):
    events: list[Happening]
    recommendations: list[Noted]
    decisions: list[Noted]
    summary: dict[str, Any]


@router.get("/journey/loop", summary="The whole journey, newest first", responses={200: {"model": Loop}, **faults()})
def loop(
    house: HouseDep,
    who: Caller,
    run_id: Which = None,
    session_id: Which = None,
    limit: Annotated[int, Query(ge=1, le=2000)] = 300,
) -> Json:
    def wanted(record: Record) -> bool:
        body = record.body
        return (run_id is None or body["run_id"] == run_id) and (session_id is None or body["session_id"] == session_id)

    def notes(kind: str) -> list[dict[str, Any]]:
        found, _ = Shelf(house, who).page(kind, limit, wanted=wanted)
        return [posted(record) for record in found]

    events = [*happened(house, who, run_id, session_id, limit), *notes(EVENT)]
    events.sort(key=lambda entry: float(entry["timestamp"]), reverse=True)
    advice, decisions = notes(ADVICE), notes(DECISION)
    answer = {"events": events[:limit], "recommendations": advice, "decisions": decisions}
    return Json({**answer, "summary": summary(len(answer["events"]), advice, len(decisions))})


@router.post("/journey/events", summary="Write an entry", responses={200: {"model": Happening}, **faults(409)})
async def add_event(house: HouseDep, who: Caller, asked: NewEvent, key: Key = None, dry_run: DryRun = False) -> Json:
    body = {
        **asked.model_dump(),
        "actor": asked.actor or who.name,
        "metadata": asked.metadata or {},
        "timestamp": time.time() if asked.timestamp is None else asked.timestamp,
    }
    return await _add(house, who, EVENT, asked, body=body, key=key, dry_run=dry_run)


@router.post("/journey/recommendations", summary="Recommend", responses={200: {"model": Noted}, **faults(409)})
async def recommend(house: HouseDep, who: Caller, asked: NewAdvice, key: Key = None, dry_run: DryRun = False) -> Json:
    now = time.time()
    later = dict.fromkeys(("responded_at", "user_note", "modified_action"))
    body = {**asked.model_dump(), **later, "status": "pending", "created_at": now, "updated_at": now}
    return await _add(house, who, ADVICE, asked, body=body, key=key, dry_run=dry_run)


@router.post(
    "/journey/recommendations/{recommendation_id}/respond",
    summary="Say what became of a recommendation",
    responses={200: {"model": Noted}, **faults(400, 404)},
)
async def respond(
    house: HouseDep,
    who: Caller,
    recommendation_id: Annotated[str, Path(max_length=200)],
    asked: AdviceResponse,
    dry_run: DryRun = False,
) -> Json:
    record = await asyncio.to_thread(Shelf(house, who).find, ADVICE, recommendation_id)
    if record is None:
        raise NotFound("Recommendation not found", "recommendation_id")
    word = asked.status.strip().lower()
    if word not in RESPONSES:
        raise HTTPException(400, f"status: {word[:50]!r} is not one of {', '.join(RESPONSES)}")
    now = time.time()
    body = {**record.body, **asked.model_dump(), "status": word, "responded_at": now, "updated_at": now}
    draft = Draft(ADVICE, record.id, json.dumps(body), parent=record.parent)
    changed = await act(house, who, PutRecord(draft, owner=record.body["user"]), dry_run)
    return Json(marked(posted(changed), dry_run))


@router.post("/journey/decisions", summary="Write down a decision", responses={200: {"model": Noted}, **faults(409)})
async def decide(house: HouseDep, who: Caller, asked: NewDecision, key: Key = None, dry_run: DryRun = False) -> Json:
    now = time.time()
    body = {**asked.model_dump(), "created_at": now, "updated_at": now}
    return await _add(house, who, DECISION, asked, body=body, key=key, dry_run=dry_run)


async def _add(
    house: House,
    who: Principal,
    kind: str,
    asked: Entry,
    *,
    body: dict[str, Any],
    key: str | None,
    dry_run: bool,
) -> Json:
    request = asked.model_dump()
    for field in ("run_id", "session_id"):
        if "\0" in (request[field] or ""):
            raise Invalid(f"{field}: holds a NUL character", field)
    draft = Draft(
        kind, f"{PREFIX[kind]}_{once.name_for(kind, who, key, 12)}", "", asked.run_id or asked.session_id or ""
    )
    record = await Shelf(house, who).add(draft, body, request, key, dry_run)
    return Json(marked(posted(record), dry_run))
