"""The cluster: what it is, and how many runs are where."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from rota.api.act import act
from rota.api.answers import Json
from rota.api.asked import Free, Making, Word
from rota.api.depends import Caller, DryRun, HouseDep, Strict
from rota.api.dry import IGNORED, marked
from rota.api.faults import faults
from rota.api.house import House
from rota.api.lookups import look_up
from rota.api.router import Router
from rota.api.survey import KIND, MANUAL, SOURCES, STATUSES, Survey, survey_of
from rota.app.authz import Act, Principal, authorise, may
from rota.app.commands import Draft, PutRecord
from rota.app.errors import NotFound
from rota.app.ports import Record
from rota.core.clusters import LABELS, canonical
from rota.core.run import RunState

router = Router("cluster")
MOST_DETAILS = 100_000  # characters
NULLABLE = ("head_node", "node_count", "gpu_count", "notes")  # an answer may have null there


class ClusterShape(BaseModel):
    type: str
    status: str
    source: str
    label: str
    description: str
    head_node: str | None
    node_count: int | None
    gpu_count: int | None
    notes: str | None
    confidence: float | None
    details: dict[str, Any]
    last_detected_at: float | None
    updated_at: float


class Summary(BaseModel):
    total: int
    running: int
    launching: int
    queued: int
    ready: int
    failed: int
    finished: int


class Surveyed(BaseModel):
    cluster: ClusterShape
    run_summary: Summary


class Set(Surveyed):
    dry_run: bool | None = None
    ignored: list[str] | None = Field(None, description=IGNORED)


class Detect(Making):
    preferred_type: Word | None = None


class Manual(Making):
    type: Word | None = None
    status: Word | None = None
    source: Word | None = None
    head_node: Word | None = None
    node_count: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    gpu_count: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    notes: Annotated[str, Field(max_length=10_000)] | None = None
    details: Free | None = None


def _answer(house: House, survey: Survey, manual: Record | None) -> dict[str, Any]:
    return {"cluster": survey.cluster(house, manual), "run_summary": _summary(house)}


def _summary(house: House) -> dict[str, int]:
    count = house.service.tally().counts
    return {
        "total": sum(count.values()),
        "running": count[RunState.RUNNING],
        "launching": count[RunState.STARTING],
        "queued": count[RunState.QUEUED],
        "ready": count[RunState.HELD],
        "failed": count[RunState.FAILED] + count[RunState.LOST],
        "finished": count[RunState.SUCCEEDED],
    }


@router.get("/cluster", summary="The cluster and its runs", responses={200: {"model": Surveyed}, **faults()})
def get_cluster(house: HouseDep, who: Caller, request: Request) -> Json:
    """As last detected or set by hand; the counts of GPUs and nodes are those of the ledger. Nothing is probed."""
    return Json(_answer(house, survey_of(request), house.service.record(KIND, MANUAL)))


@router.post("/cluster/detect", summary="Look again", responses={200: {"model": Set}, **faults(400)})
async def detect(
    house: HouseDep,
    who: Caller,
    request: Request,
    asked: Detect | None = None,
    dry_run: DryRun = False,
    strict: Strict = False,
) -> Json:
    """What was set by hand is forgotten, unless `preferred_type` sets it anew. An agent looks again, too, as its
    protocol says; what people have set stays, and it may prefer nothing."""
    ignored = asked.ignored(strict) if asked is not None else []
    preferred = asked.preferred_type if asked is not None else None
    sets = may(who, Act.DESCRIBE)
    authorise(who, Act.RECORD if preferred is None else Act.DESCRIBE, who.owner)
    survey = survey_of(request)
    body: dict[str, Any] = {}
    if preferred is not None:
        preferred = _word("preferred_type", preferred)
        body = {"type": preferred, "source": "manual", "confidence": 1.0}
    await survey.detect(house, request.scope["rota.party"], preferred)
    manual = await (
        _set(house, who, body, dry_run) if sets else look_up(house, who, house.service.record, KIND, MANUAL)
    )
    return Json(marked(await look_up(house, who, _answer, house, survey, manual), dry_run, ignored))


@router.post("/cluster", summary="Set it by hand", responses={200: {"model": Set}, **faults(400)})
async def set_cluster(
    house: HouseDep,
    who: Caller,
    request: Request,
    asked: Manual | None = None,
    dry_run: DryRun = False,
    strict: Strict = False,
) -> Json:
    """What is said here is shown; what may be started at once is still decided by the GPUs that are free. A field that
    is left out stays as it is; an explicit null clears it: `type`, `status`, `source` and `details` are then as they
    were found, the others null."""
    ignored = asked.ignored(strict) if asked is not None else []
    named = asked.model_dump(exclude_unset=True, include=set(Manual.model_fields)) if asked is not None else {}
    given = {field: value for field, value in named.items() if value is not None or field in NULLABLE}
    if "type" in given:
        given["type"] = _word("type", given["type"])
        given["confidence"] = 1.0
    for field, known in (("status", STATUSES), ("source", SOURCES)):
        if field in given and given[field] not in known:
            raise HTTPException(400, f"{field}: {given[field][:50]!r} is not one of {', '.join(known)}")
    if len(json.dumps(given.get("details", {}))) > MOST_DETAILS:
        raise HTTPException(400, f"details: use at most {MOST_DETAILS} characters")
    before = await look_up(house, who, house.service.record, KIND, MANUAL)
    kept = {} if before is None else {field: value for field, value in before.body.items() if field not in named}
    if "type" in named:
        kept.pop("confidence", None)
    body = {"source": "manual", **kept, **given}
    manual = await _set(house, who, body, dry_run)
    return Json(marked(await look_up(house, who, _answer, house, survey_of(request), manual), dry_run, ignored))


def _word(field: str, word: str) -> str:
    found = canonical(word)
    if found is None:
        raise HTTPException(400, f"{field}: {word[:50]!r} is not one of {', '.join(LABELS)}")
    return found


async def _set(house: House, who: Principal, body: dict[str, Any], dry_run: bool) -> Record | None:
    """{} takes away what was set."""
    text = json.dumps({**body, "updated_at": time.time()}) if body else ""
    try:
        record: Record = await act(house, who, PutRecord(Draft(KIND, MANUAL, text)), dry_run)
    except NotFound:  # there was nothing to take away
        return None
    return record if body else None
