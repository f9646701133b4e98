"""Runs: make, list, look at, edit. What else can be done to one is in runs_change, why it waits in explain."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from fastapi import Path, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from rota.api.act import act
from rota.api.answers import Json, array_of, dumps, listed
from rota.api.asked import Making, Text
from rota.api.depends import Caller, DryRun, HouseDep, Key, KnownBy, Strict, seen
from rota.api.dry import marked
from rota.api.faults import faults
from rota.api.forecasts import at_hand
from rota.api.house import House
from rota.api.lookups import look_up
from rota.api.newrun import NewRun, submit_run
from rota.api.render.limits import warnings
from rota.api.render.reservation import note_of
from rota.api.render.run import ChangedRun, MadeRun, Renderer, RunShape
from rota.api.render.whole import NOT_KNOWN_YET, from_log, whole, why_it_waits
from rota.api.render.words import RUN_WORDS
from rota.api.router import Router
from rota.api.sweepbook import sweep_for
from rota.app.commands import Edit
from rota.app.errors import Invalid
from rota.app.ports import RunFilter
from rota.core.argv import argv_of
from rota.core.expect import needs_limit
from rota.core.run import WAITING, Run, RunState
from rota.core.times import told

router = Router("runs")
MOST = 1 << 62
RunId = Annotated[str, Path(max_length=200)]
Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[int | None, Query(ge=0, le=MOST, description="From the X-Next-Cursor of the page before.")]


@router.get("/runs", summary="Runs, newest first", responses={200: {"model": list[RunShape]}, **faults()})
def list_runs(
    house: HouseDep,
    who: Caller,
    archived: Annotated[bool, Query(description="Those that were archived as well.")] = False,
    status: Annotated[str | None, Query(max_length=200, description="One or more, with commas between.")] = None,
    sweep_id: Annotated[str | None, Query(max_length=200)] = None,
    user: Annotated[str | None, Query(max_length=500)] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """The header `X-Next-Cursor` is there when there are more: send it as `cursor`. A page has fewer than `limit` runs
    where their commands and environments take more than 4 MiB."""
    if user is None and house.only_own(who):
        user = who.owner
    if not house.may_see_of(who, user):
        return Json([])
    which = RunFilter(
        user=user,
        states=_states(status),
        group=sweep_id,
        archived=None if archived else False,
        before=cursor,
        limit=limit,
    )
    page, more = house.service.runs_page(which)
    renderer = Renderer(house, who)
    answer = listed(array_of(dumps(renderer.run(run)) for run in page))
    if more:
        answer.headers["X-Next-Cursor"] = str(page[-1].seq)
    return answer


def _states(status: str | None) -> frozenset[RunState]:
    words = [word.strip() for word in status.split(",")] if status else []
    for word in words:
        if word not in RUN_WORDS.values():
            known = ", ".join(dict.fromkeys(RUN_WORDS.values()))
            raise Invalid(f"status: {word[:50]!r} is not one of {known}", "status")
    return frozenset(state for state, word in RUN_WORDS.items() if word in words)


@router.post("/runs", summary="Make a run", responses={200: {"model": MadeRun}, **faults(404, 409)})
async def create_run(
    house: HouseDep,
    who: Caller,
    by: KnownBy,
    asked: NewRun,
    key: Key = None,
    dry_run: DryRun = False,
    strict: Strict = False,
) -> Json:
    """With `auto_start` it is queued at once, otherwise it is `ready` until somebody starts it."""
    ignored = asked.ignored(strict)
    group, chat = "", None
    if asked.sweep_id:
        sweep = await look_up(house, who, sweep_for, house, who, asked.sweep_id, "Sweep not found: {}", change=True)
        group, chat = sweep.id, sweep.body.get("chat_session_id")
    run = await act(house, who, submit_run(house, who, by, asked, group=group, chat=chat, key=key), dry_run)
    note = "; it ".join(_notes(house, run))
    made = {**Renderer(house, who).run(run), **({"note": note} if note else {}), **_suggested(house, run)}
    return Json(marked({**made, **warnings(house, run.spec.request)}, dry_run, ignored))


def _notes(house: House, run: Run) -> Iterator[str]:
    if run.spec.reservation and (note := note_of(house, run)):
        yield note
    if needs_limit(run.spec):
        least = told(house.service.policy().default_expected_s)
        yield f"counts as {least} at least, as every run of an agent without a time limit; with one it may start sooner"


def _suggested(house: House, run: Run) -> dict[str, Any]:
    said = house.service.suggest(run)
    return {} if said is None else {"suggested_time_limit_seconds": said.limit_s, "suggestion": said.text}


@router.get("/runs/{run_id}", summary="One run, whole", responses={200: {"model": RunShape}, **faults(404)})
async def get_run(house: HouseDep, who: Caller, run_id: RunId, request: Request) -> Json:
    """While it waits: every reason why, its place and when it is expected to start, as far as these can be told at once
    (`/explain` and `/eta` wait for them). With metrics: its charts."""
    run = await run_in_threadpool(seen, house, who, run_id)
    answer = await run_in_threadpool(whole, house, who, run)
    if run.state in WAITING:
        why = await at_hand(house.forecasts, who, request.scope, partial(why_it_waits, house, who, run))
        answer |= NOT_KNOWN_YET if why is None else why
    found = await from_log(house, run)
    return Json({**answer, **found, "wandb_dir": answer["wandb_dir"] or found["wandb_dir"]})


class Change(Making):
    name: Annotated[str, Field(max_length=500)] | None = None
    command: Text | None = None
    workdir: Annotated[str, Field(max_length=4096)] | None = None


@router.put(
    "/runs/{run_id}",
    summary="Change a run's name, command or directory",
    responses={200: {"model": ChangedRun}, **faults(400, 404, 409)},
)
async def change_run(
    house: HouseDep, who: Caller, run_id: RunId, asked: Change, dry_run: DryRun = False, strict: Strict = False
) -> Json:
    """Other fields stay as they are: those that were sent come back in `ignored`."""
    await look_up(house, who, seen, house, who, run_id)
    ignored = asked.ignored(strict)
    given: dict[str, Any] = {name: value for name, value in asked.known().items() if value is not None}
    for field, text in given.items():
        if not text.strip():
            raise HTTPException(400, f"Run {field} cannot be empty")
    edit = Edit(
        run_id,
        name=asked.name,
        argv=None if asked.command is None else argv_of(asked.command),
        workdir=None if asked.workdir is None else os.path.join(house.workdir, asked.workdir),
    )
    run = await act(house, who, edit, dry_run)
    return Json(marked(Renderer(house, who).run(run), dry_run, ignored))
