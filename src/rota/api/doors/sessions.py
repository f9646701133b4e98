"""Sessions: a conversation, a person's or an agent's, that runs and notes can be told to belong to."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel

from rota.api import once
from rota.api.answers import Json
from rota.api.asked import Body, Word
from rota.api.depends import Caller, DryRun, HouseDep, Key
from rota.api.dry import marked
from rota.api.faults import faults
from rota.api.router import Router
from rota.api.shelf import Shelf
from rota.app.commands import Draft
from rota.app.errors import NotFound
from rota.app.ports import Record

router = Router("sessions")
KIND = "session"


class NewSession(Body):
    title: Word | None = None
    model_provider: Word | None = None
    model_id: Word | None = None


class SessionShape(BaseModel):
    id: str
    title: str
    created_at: float
    message_count: int
    model_provider: str | None
    model_id: str | None
    status: str


def _shown(record: Record) -> dict[str, Any]:
    body = record.body
    return {
        "id": record.id,
        "title": body["title"],
        "created_at": record.at,
        "message_count": 0,
        "model_provider": body["model_provider"],
        "model_id": body["model_id"],
        "status": "idle",
        "user": body["user"],
    }


@router.post("/sessions", summary="Open a session", responses={200: {"model": SessionShape}, **faults(409)})
async def create_session(
    house: HouseDep, who: Caller, asked: NewSession | None = None, key: Key = None, dry_run: DryRun = False
) -> Json:
    asked = asked or NewSession()
    body = {**asked.model_dump(), "title": asked.title or "New Chat"}
    draft = Draft(KIND, once.name_for(KIND, who, key, 12), "")
    record = await Shelf(house, who).add(draft, body, asked.model_dump(), key, dry_run)
    return Json(marked(_shown(record), dry_run))


@router.get("/sessions", summary="Sessions, newest first", responses={200: {"model": list[SessionShape]}, **faults()})
def list_sessions(
    house: HouseDep,
    who: Caller,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
) -> Json:
    found, following = Shelf(house, who).page(KIND, limit, cursor)
    headers = {"X-Next-Cursor": str(following)} if following is not None else None
    return Json([_shown(record) for record in found], headers=headers)


@router.get("/sessions/{session_id}", summary="One session", responses={200: {"model": SessionShape}, **faults(404)})
def get_session(house: HouseDep, who: Caller, session_id: Annotated[str, Path(max_length=200)]) -> Json:
    record = Shelf(house, who).find(KIND, session_id)
    if record is None:
        raise NotFound("Session not found", "session_id")
    return Json({**_shown(record), "messages": []})
