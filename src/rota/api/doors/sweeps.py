"""Sweeps: runs that belong together, made from a grid or added one by one, with a cap on how many run at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from rota.api.act import act
from rota.api.answers import Json, array_of, dumps, listed
from rota.api.depends import Caller, DryRun, HouseDep, Key, KnownBy, Strict
from rota.api.dry import marked
from rota.api.faults import faults
from rota.api.house import House
from rota.api.lookups import look_up
from rota.api.newrun import NewRun, submit_run
from rota.api.newsweep import ChangedSweep, NewSweep, WildSweep, change_sweep, make_sweep, make_wild
from rota.api.render.ending import Grace, Now, OnlyInQuery, asked_grace
from rota.api.render.limits import warnings
from rota.api.render.run import MadeRun, Renderer
from rota.api.render.sweep import MadeSweep, SweepShape, sweep_of
from rota.api.router import Router
from rota.api.shelf import Shelf, owner_of
from rota.api.sweepbook import KIND, sweep_for
from rota.app.authz import Principal
from rota.app.commands import CancelGroup, StartGroup
from rota.app.errors import Changed, NotFound, Refused
from rota.app.ports import Record
from rota.app.sweeps import GroupCancelled
from rota.core.grace import kill_at
from rota.core.run import Run, RunState

router = Router("sweeps")
MOST_PARALLEL = 10_000
PARALLEL = "How many may run at a time, from now on; 0 lifts the cap."
MOST_NAMED = 10
TRIES = 10  # of a change, where others change the same sweep at the same time
SweepId = Annotated[str, Path(max_length=200)]


class Begun(BaseModel):
    message: str
    sweep_id: str


class SweepStopped(BaseModel):
    message: str
    sweep_id: str
    cancelled: int = Field(description="Ended at once: they had not started.")
    stopping: int = Field(description="Hold their GPUs until their processes are gone.")
    kill_at: float | None = Field(description="Epoch seconds: the last of those is sent SIGKILL then at the latest.")
    refused: list[str] = Field(description="Runs that were left alone, and why; 10 at most.")
    refused_count: int = Field(description="How many those are in all.")
    dry_run: bool | None = None


def _shown(house: House, record: Record, made: Mapping[str, RunState] | None = None) -> dict[str, Any]:
    """A sweep with its runs. Those that were `made` just now may be answered before the groups hear of them."""
    states = house.groups.states(record.id) or made or {}
    return sweep_of(record, states, house.service.caps().get(record.id))


@router.post("/sweeps/wild", summary="Make an empty sweep", responses={200: {"model": MadeSweep}, **faults(409)})
async def create_wild(
    house: HouseDep,
    who: Caller,
    by: KnownBy,
    asked: WildSweep | None = None,
    key: Key = None,
    dry_run: DryRun = False,
    strict: Strict = False,
) -> Json:
    """To be filled run by run, as an agent finds out what to try next."""
    asked = asked or WildSweep()
    ignored = asked.ignored(strict)
    record = await make_wild(house, who, by, asked, key=key, dry_run=dry_run)
    return Json(marked(await look_up(house, who, _shown, house, record), dry_run, ignored))


@router.post("/sweeps", summary="Make a sweep from a grid", responses={200: {"model": MadeSweep}, **faults(409)})
async def create_sweep(
    house: HouseDep,
    who: Caller,
    by: KnownBy,
    asked: NewSweep,
    key: Key = None,
    dry_run: DryRun = False,
    strict: Strict = False,
) -> Json:
    """Every combination of `parameters`, in the order of the keys, up to `max_runs`; all of them are made, or none."""
    ignored = asked.ignored(strict)
    record, states = await make_sweep(house, who, by, asked, key=key, dry_run=dry_run)
    shown = sweep_of(record, states, None) if dry_run else await look_up(house, who, _shown, house, record)
    return Json(marked({**shown, **warnings(house, asked)}, dry_run, ignored))


@router.get("/sweeps", summary="Sweeps, newest first", responses={200: {"model": list[SweepShape]}, **faults()})
def list_sweeps(
    house: HouseDep,
    who: Caller,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    cursor: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
) -> Response:
    found, following = Shelf(house, who).page(KIND, limit, cursor)
    answer = listed(array_of(dumps(_shown(house, record)) for record in found))
    if following is not None:
        answer.headers["X-Next-Cursor"] = str(following)
    return answer


@router.get("/sweeps/{sweep_id}", summary="One sweep", responses={200: {"model": SweepShape}, **faults(404)})
def get_sweep(house: HouseDep, who: Caller, sweep_id: SweepId) -> Json:
    return Json(_shown(house, sweep_for(house, who, sweep_id)))


@router.put(
    "/sweeps/{sweep_id}", summary="Change a sweep", responses={200: {"model": SweepShape}, **faults(400, 404, 409)}
)
async def put_sweep(
    house: HouseDep, who: Caller, sweep_id: SweepId, asked: ChangedSweep, dry_run: DryRun = False
) -> Json:
    """Its grid only while it has no runs. A draft that is made `pending` or `running` gets its runs."""
    for _ in range(TRIES - 1):
        try:
            return await _changed(house, who, sweep_id, asked, dry_run)
        except Changed:
            continue
    return await _changed(house, who, sweep_id, asked, dry_run)


async def _changed(house: House, who: Principal, sweep_id: str, asked: ChangedSweep, dry_run: bool) -> Json:
    record = await look_up(house, who, sweep_for, house, who, sweep_id, change=True)
    states = await look_up(house, who, house.groups.states, record.id)
    record, states = await change_sweep(house, who, record, states, asked, dry_run=dry_run)
    if dry_run:
        return Json(marked(sweep_of(record, states, None), dry_run))
    return Json(await look_up(house, who, _shown, house, record, states))


@router.post(
    "/sweeps/{sweep_id}/runs", summary="Add a run to a sweep", responses={200: {"model": MadeRun}, **faults(404, 409)}
)
async def add_run(
    house: HouseDep,
    who: Caller,
    by: KnownBy,
    sweep_id: SweepId,
    asked: NewRun,
    key: Key = None,
    dry_run: DryRun = False,
    strict: Strict = False,
) -> Json:
    """`chat_session_id` is the sweep's where the run names none."""
    ignored = asked.ignored(strict)
    sweep = await look_up(house, who, sweep_for, house, who, sweep_id, change=True)
    chat = sweep.body["chat_session_id"]
    run = await act(house, who, submit_run(house, who, by, asked, group=sweep.id, chat=chat, key=key), dry_run)
    made = {**Renderer(house, who).run(run), **warnings(house, run.spec.request)}
    return Json(marked(made, dry_run, ignored))


@router.post(
    "/sweeps/{sweep_id}/start", summary="Start a sweep", responses={200: {"model": Begun}, **faults(400, 404, 409)}
)
async def start_sweep(
    house: HouseDep,
    who: Caller,
    sweep_id: SweepId,
    parallel: Annotated[int, Query(ge=0, le=MOST_PARALLEL, description=PARALLEL)] = 1,
    dry_run: DryRun = False,
) -> Json:
    """All its ready runs are queued, and the scheduler keeps `parallel` of them running as long as there are more."""
    sweep = await look_up(house, who, sweep_for, house, who, sweep_id, change=True)
    states = await look_up(house, who, house.groups.states, sweep.id)
    if sweep.body["draft"] and not states:
        raise HTTPException(400, "Sweep is a draft; make it pending first")
    begun, waiting = await act(house, who, StartGroup(sweep.id, parallel, owner=owner_of(sweep)), dry_run)
    return Json(marked({"message": f"Started {begun}/{waiting} runs", "sweep_id": sweep.id}, dry_run))


@router.post(
    "/sweeps/{sweep_id}/stop",
    summary="Stop all runs of a sweep",
    responses={200: {"model": SweepStopped}, **faults(404, 409)},
    dependencies=[OnlyInQuery],
)
async def stop_sweep(
    house: HouseDep,
    who: Caller,
    sweep_id: SweepId,
    grace_seconds: Grace = None,
    now: Now = False,
    waiting_only: Annotated[bool, Query(description="Leave those alone that hold GPUs.")] = False,
    dry_run: DryRun = False,
) -> Json:
    """In one transaction: what waits is cancelled, what runs is stopped as by `POST /runs/{id}/stop`. Runs that the
    caller may not stop are left alone and named."""
    sweep = await look_up(house, who, sweep_for, house, who, sweep_id, change=True)
    command = CancelGroup(sweep.id, grace_s=asked_grace(now, grace_seconds), waiting_only=waiting_only)
    done: GroupCancelled = await act(house, who, command, dry_run)
    refused = [(run.id, _told(house, who, run, why)) for run, why in done.refused]
    if refused and not done.cancelled and not done.stopping:
        raise refused[0][1]
    policy = house.service.policy()
    killed = [at for run in done.stopping if (at := kill_at(policy, run)) is not None]
    answer = {
        "message": "Sweep stopped",
        "sweep_id": sweep.id,
        "cancelled": done.cancelled,
        "stopping": len(done.stopping),
        "kill_at": max(killed, default=None),
        "refused": [f"{run_id}: {why.message}" for run_id, why in refused[:MOST_NAMED]],
        "refused_count": len(refused),
    }
    return Json(marked(answer, dry_run))


def _told(house: House, who: Principal, run: Run, why: Refused) -> Refused:
    """Return the refusal as this caller may read it: it may name the owner of a run that is hidden."""
    return why if house.may_see_of(who, run.user) else NotFound("Run not found", "run_id")
