"""The journey: what was tried, recommended and decided, from the events of runs and what people and agents add."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from rota.api import once, person_answers
from rota.api.act import act
from rota.api.answers import Json
from rota.api.asked import Body, Free, Word
from rota.api.depends import Caller, DryRun, HouseDep, Key
from rota.api.diary import happened
from rota.api.dry import marked
from rota.api.faults import faults
from rota.api.house import House
from rota.api.lookups import look_up
from rota.api.render.journey import (
    AGENT,
    ANSWERS,
    HUMAN,
    is_reserved,
    of_decision,
    of_recommendation,
    posted,
    responses_of,
    summary,
)
from rota.api.router import Router
from rota.api.shelf import Shelf
from rota.app.authz import Act, Principal, Role, authorise
from rota.app.commands import Draft, PutRecord
from rota.app.errors import Forbidden, Invalid, NotFound
from rota.app.ports import Record

router = Router("journey")
EVENT, ADVICE, DECISION = "journey", "recommendation", "decision"
PREFIX = {EVENT: "jevt", ADVICE: "jrec", DECISION: "jdec"}
EXECUTED = "executed"
APPROVED = ("accepted", "modified", EXECUTED)
OF_AGENTS = (EXECUTED, "dismissed")  # answers that an agent may give, to its own recommendations
MOST_RESPONSES = 50  # kept with a recommendation; the oldest go first
Long = Annotated[str, Field(max_length=10_000)]
Title = Annotated[str, Field(min_length=1, max_length=1000)]
Which = Annotated[str | None, Query(max_length=500)]


class Entry(Body):
    session_id: Word | None = None
    run_id: Word | None = None
    chart_id: Word | None = None


class NewEvent(Entry):
    kind: Annotated[str, Field(min_length=1, max_length=200)]
    actor: Word | None = Field(None, description="Default: the caller. An agent writes in its own name only.")
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
    seen: Word | None = Field(
        None, description="The status that this one is to replace. Needed where another person gave it."
    )
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
    by: str | None = Field(None, description="The caller who wrote it; absent where Rota saw it happen.")


class Noted(BaseModel):
    id: str
    title: str
    status: str
    session_id: str | None
    run_id: str | None
    created_at: float
    updated_at: float
    by: str = Field(description="The caller who wrote it.")


class Summary(BaseModel):
    events: int
    recommendations: int
    decisions: int
    accepted_recommendations: int
    executed_recommendations: int
    rejected_recommendations: int
    acceptance_rate: float = Field(description="Accepted ones of all; 0.0 without any.")


class Loop(BaseModel):
    events: list[Happening]
    recommendations: list[Noted]
    decisions: list[Noted]
    summary: Summary


@router.get("/journey/loop", summary="The whole journey, newest first", responses={200: {"model": Loop}, **faults()})
def loop(
    house: HouseDep,
    who: Caller,
    run_id: Which = None,
    session_id: Which = None,
    limit: Annotated[int, Query(ge=1, le=2000)] = 300,
) -> Json:
    """Every recommendation, each response to one and every decision is among the events as well."""

    def records(kind: str) -> list[Record]:
        return Shelf(house, who).page(kind, limit, wanted=_about(run_id, session_id))[0]

    advice, decisions = records(ADVICE), records(DECISION)
    events = [*happened(house, who, run_id, session_id, limit), *map(posted, records(EVENT))]
    events += [event for record in advice for event in of_recommendation(record)]
    events += [event for record in decisions for event in of_decision(record)]
    events.sort(key=lambda entry: float(entry["timestamp"]), reverse=True)
    notes = {"recommendations": [*map(posted, advice)], "decisions": [*map(posted, decisions)]}
    counts = summary(len(events[:limit]), notes["recommendations"], len(decisions))
    return Json({"events": events[:limit], **notes, "summary": counts})


def _about(run_id: str | None, session_id: str | None) -> Callable[[Record], bool]:
    def wanted(record: Record) -> bool:
        body = record.body
        return run_id in (None, body["run_id"]) and session_id in (None, body["session_id"])

    return wanted


@router.get(
    "/journey/recommendations",
    summary="Recommendations, newest first",
    responses={200: {"model": list[Noted]}, **faults()},
)
def recommendations(
    house: HouseDep,
    who: Caller,
    run_id: Which = None,
    session_id: Which = None,
    limit: Annotated[int, Query(ge=1, le=2000)] = 200,
    cursor: Annotated[int | None, Query(ge=0, le=1 << 62, description="From X-Next-Cursor.")] = None,
) -> Json:
    found, following = Shelf(house, who).page(ADVICE, limit, cursor, wanted=_about(run_id, session_id))
    headers = {"X-Next-Cursor": str(following)} if following is not None else None
    return Json([posted(record) for record in found], headers=headers)


@router.post("/journey/events", summary="Write an entry", responses={200: {"model": Happening}, **faults(409)})
async def add_event(house: HouseDep, who: Caller, asked: NewEvent, key: Key = None, dry_run: DryRun = False) -> Json:
    """An agent cannot write the kinds that stand for what people answered, what was decided and what runs did."""
    if who.role is Role.AGENT and is_reserved(asked.kind):
        raise Forbidden(
            f"{who.name} is an agent and may not write the kind {asked.kind[:50]!r}: it stands for what people or runs "
            "did; use another kind, or POST /journey/recommendations or /journey/decisions"
        )
    body = {
        **asked.model_dump(),
        "actor": who.name if who.role is Role.AGENT else asked.actor or who.name,
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
    responses={200: {"model": Noted}, **faults(400, 404, 409)},
)
async def respond(
    house: HouseDep,
    who: Caller,
    recommendation_id: Annotated[str, Path(max_length=200)],
    asked: AdviceResponse,
    dry_run: DryRun = False,
) -> Json:
    """To accept, reject or modify is a person's; an agent says of its own recommendations that they were executed or
    dismissed. A person's answer stays, unless that person gives another, or one who names it in `seen`; what was
    accepted or modified may be called executed by everybody who may answer."""
    return await person_answers.answer(
        lambda raced: _respond(house, who, recommendation_id, asked, dry_run, raced=raced)
    )


async def _respond(
    house: House, who: Principal, recommendation_id: str, asked: AdviceResponse, dry_run: bool, *, raced: bool
) -> Json:
    record = await look_up(house, who, Shelf(house, who).find, ADVICE, recommendation_id)
    if record is None:
        raise NotFound("Recommendation not found", "recommendation_id")
    word = asked.status.strip().lower()
    if word not in ANSWERS:
        raise HTTPException(400, f"status: {word[:50]!r} is not one of {', '.join(ANSWERS)}")
    _must_be_a_person(who, record, word)
    authorise(who, Act.RECORD, record.body["user"])
    notes = {"user_note": asked.user_note, "modified_action": asked.modified_action}
    before = responses_of(record.body)
    noted = {name: record.body.get(name) for name in notes}
    if who.role is Role.AGENT:  # these are a person's words
        notes = noted
    last = next((one for one in reversed(before) if one.get("actor", HUMAN) == HUMAN), None)
    if last is not None:
        if word == EXECUTED and last["status"] in APPROVED:
            # what the person said with it stays
            given = {name: text for name, text in notes.items() if text is not None}
            notes = noted | given
        elif (last["status"], record.body["status"], noted) != (word, word, notes):
            first = person_answers.PersonAnswer(last["status"], last.get("by") or "")
            person_answers.must_have_seen(first, who, asked.seen, record.body["status"], raced=raced)
    now = time.time()
    response = {"status": word, "responded_at": now, "by": who.name, "actor": _actor(who)}
    again = bool(before) and (before[-1]["status"], before[-1].get("by"), noted) == (word, who.name, notes)
    # one entry for what is said again and again, so that repeating it drops none of the others
    responses = before if again else [*before, response][-MOST_RESPONSES:]
    said = {**notes, "status": word, "responded_at": now, "responses": responses}
    body = {**record.body, **said, "updated_at": now}
    draft = Draft(ADVICE, record.id, json.dumps(body), parent=record.parent, seen=json.dumps(record.body))
    changed = await act(house, who, PutRecord(draft, owner=record.body["user"]), dry_run)
    return Json(marked(posted(changed), dry_run))


@router.post("/journey/decisions", summary="Write down a decision", responses={200: {"model": Noted}, **faults(409)})
async def decide(house: HouseDep, who: Caller, asked: NewDecision, key: Key = None, dry_run: DryRun = False) -> Json:
    now = time.time()
    body = {**asked.model_dump(), "actor": _actor(who), "created_at": now, "updated_at": now}
    return await _add(house, who, DECISION, asked, body=body, key=key, dry_run=dry_run)


def _actor(who: Principal) -> str:
    return AGENT if who.role is Role.AGENT else HUMAN


def _must_be_a_person(who: Principal, record: Record, word: str) -> None:
    if who.role is not Role.AGENT or (word in OF_AGENTS and record.by == who.name):
        return
    known = " or ".join(OF_AGENTS)
    raise Forbidden(
        f"{who.name} is an agent and may not answer this with {word!r}: what becomes of a recommendation is for a "
        f"person to say ({who.owner}, or an admin); an agent may call its own ones {known}"
    )


def _must_be_own(house: House, who: Principal, run_id: str) -> None:
    """An entry about a run stands in the journey of that run's owner. What names no run that the caller can see is a
    label."""
    try:
        run = house.service.run(run_id)
    except NotFound:
        return
    if house.may_see(who, run):
        authorise(who, Act.RECORD, run.user)


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
    if asked.run_id:
        await look_up(house, who, _must_be_own, house, who, asked.run_id)
    draft = Draft(
        kind, f"{PREFIX[kind]}_{once.name_for(kind, who, key, 12)}", "", asked.run_id or asked.session_id or ""
    )
    record = await Shelf(house, who).add(draft, body, request, key, dry_run)
    return Json(marked(posted(record), dry_run))
