"""What can be done to a run that is there: let it go, stop it, run it again, put it away, report on it."""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from rota.api.act import act
from rota.api.answers import Json
from rota.api.asked import Body, Making, Priority, Text, Word, compact
from rota.api.depends import Caller, DryRun, HouseDep, Key, Strict, seen
from rota.api.dry import marked
from rota.api.faults import faults
from rota.api.house import House
from rota.api.lookups import look_up
from rota.api.newrun import GpuWrap
from rota.api.render.ending import Ending, Force, Grace, Now, OnlyInQuery, asked_grace, ending_of
from rota.api.render.run import MadeRun, Renderer, RunShape, window_of
from rota.api.render.words import RUN_WORDS
from rota.api.router import Router
from rota.api.sweepbook import may_add, sweep_for
from rota.app.authz import Act, Principal, authorise, may
from rota.app.commands import Archive, Cancel, Command, Edit, Hold, Release, Report, Reprioritise, Rerun
from rota.app.errors import Conflict, Invalid
from rota.core.argv import argv_of
from rota.core.run import ACTIVE, ENDED, Run, RunState

router = Router("runs")
RunId = Annotated[str, Path(max_length=200)]
READY = frozenset({RunState.HELD})
LIVE = frozenset(RunState) - ENDED
REPORTED = {word: state for state, word in RUN_WORDS.items() if state is not RunState.LOST}


class Message(BaseModel):
    message: str


class Started(Message):
    tmux_window: str


class Queued(RunShape):
    message: str


class Archived(Message):
    run: RunShape


async def _change(
    house: House, who: Principal, command: Any, dry_run: bool, *, allowed: Set[RunState], refusal: str
) -> Run:
    """Send it if the run is in one of these states; `refusal` is what clients of this field read otherwise."""

    async def look() -> Run:
        run = await look_up(house, who, seen, house, who, command.run_id)
        if run.state not in allowed:
            raise HTTPException(400, f"{refusal} (status: {RUN_WORDS[run.state]})")
        return run

    await look()
    try:
        changed: Run = await act(house, who, command, dry_run)
    except Conflict:
        await look()  # it moved on while we looked: say where it is now
        raise
    return changed


@router.post(
    "/runs/{run_id}/queue", summary="Queue a ready run", responses={200: {"model": Queued}, **faults(400, 404, 409)}
)
async def queue_run(house: HouseDep, who: Caller, run_id: RunId, dry_run: DryRun = False) -> Json:
    run = await _change(house, who, Release(run_id), dry_run, allowed=READY, refusal="Run is not ready")
    return Json(marked({"message": "Run queued", **Renderer(house, who).run(run)}, dry_run))


@router.post(
    "/runs/{run_id}/start", summary="Start a run", responses={200: {"model": Started}, **faults(400, 404, 409)}
)
async def start_run(house: HouseDep, who: Caller, run_id: RunId, dry_run: DryRun = False) -> Json:
    """As soon as there is room: when no GPU is free it is `queued`, and starts by itself. No call starts too many."""
    run = await look_up(house, who, seen, house, who, run_id)
    if run.state is RunState.QUEUED:
        authorise(who, Act.RELEASE, run.user)
    else:
        run = await _change(house, who, Release(run_id), dry_run, allowed=READY, refusal="Run cannot be started")
    return Json(marked({"message": "Run started", "tmux_window": window_of(run), "id": run.id}, dry_run))


class Stopped(Ending, Message):
    id: str
    status: str
    dry_run: bool | None = None


@router.post(
    "/runs/{run_id}/stop",
    summary="Stop a run",
    responses={200: {"model": Stopped}, **faults(400, 404, 409)},
    dependencies=[OnlyInQuery],
)
async def stop_run(
    house: HouseDep,
    who: Caller,
    run_id: RunId,
    grace_seconds: Grace = None,
    now: Now = False,
    force: Force = False,
    dry_run: DryRun = False,
) -> Json:
    """One that waits is cancelled; one that runs gets its signal and, after its grace, is ended with all it forked: the
    answer says when that is at the latest. Asked again it ends no later. The run's own grace counts in full only for
    its owner; for anybody else the policy caps it. `force` is for a run that has not ended after its SIGKILL: sent 10 s
    after the first stop with `now` or `force` it ends the run on record."""
    left = await look_up(house, who, _left, house, who, run_id) if force else ""
    command = Cancel(run_id, grace_s=asked_grace(now or force, grace_seconds), force=force, left=left)
    run = await _change(house, who, command, dry_run, allowed=LIVE, refusal="Run is not active")
    answer = {"message": "Run stopped", "id": run.id, "status": RUN_WORDS[run.state], **ending_of(house, run)}
    return Json(marked(answer, dry_run))


def _left(house: House, who: Principal, run_id: str) -> str:
    """Return what of the run has not ended, for the record of a forced end. Only an admin may know, or ask."""
    return house.service.stalled_by(seen(house, who, run_id)) if may(who, Act.FORCE) else ""


class Again(Making):
    command: Text | None = None
    argv: Annotated[list[Text], Field(min_length=1, max_length=10_000)] | None = None
    workdir: Annotated[str, Field(max_length=4096)] | None = None
    auto_start: bool = False
    origin_alert_id: Word | None = None
    gpuwrap_config: GpuWrap | None = None


@router.post(
    "/runs/{run_id}/rerun", summary="Run it again", responses={200: {"model": MadeRun}, **faults(400, 404, 409)}
)
async def rerun_run(
    house: HouseDep,
    who: Caller,
    run_id: RunId,
    asked: Again | None = None,
    key: Key = None,
    dry_run: DryRun = False,
    strict: Strict = False,
) -> Json:
    """A new run: same directory and chat, `parent_run_id` is the old one; in the same sweep, where the caller may add
    to that."""
    alone = await look_up(house, who, _is_to_be_alone, house, who, run_id)
    asked = asked or Again()
    ignored = asked.ignored(strict)
    if asked.command is not None and not asked.command.strip():
        raise HTTPException(400, "Run command cannot be empty")
    if asked.workdir is not None and not asked.workdir.startswith("/"):
        raise Invalid("workdir: is not an absolute path", "workdir")
    if asked.command is not None and asked.argv is not None:
        raise Invalid("command: give either `command`, a line for the shell, or `argv`, a list of words", "command")
    wrap = asked.gpuwrap_config
    labels = {"origin_alert_id": asked.origin_alert_id or "", "wandb_dir": "", "tmux_pane": ""}
    labels |= compact({"gpuwrap_config": None if wrap is None else wrap.model_dump(exclude_none=True)})
    command = Rerun(
        run_id,
        argv=argv_of(asked.command) if asked.command is not None else tuple(asked.argv) if asked.argv else None,
        workdir=asked.workdir,
        labels=labels,
        held=not asked.auto_start,
        key=key or "",
        alone=alone,
    )
    run = await act(house, who, command, dry_run)
    return Json(marked(Renderer(house, who).run(run), dry_run, ignored))


def _is_to_be_alone(house: House, who: Principal, run_id: str) -> bool:
    return not may_add(house, who, seen(house, who, run_id).spec.group)


@router.post(
    "/runs/{run_id}/archive", summary="Put a run out of sight", responses={200: {"model": Archived}, **faults(404)}
)
async def archive_run(house: HouseDep, who: Caller, run_id: RunId, dry_run: DryRun = False) -> Json:
    return await _archive(house, who, Archive(run_id, True), "Run archived", dry_run)


@router.post(
    "/runs/{run_id}/unarchive", summary="Bring a run back", responses={200: {"model": Archived}, **faults(404)}
)
async def unarchive_run(house: HouseDep, who: Caller, run_id: RunId, dry_run: DryRun = False) -> Json:
    return await _archive(house, who, Archive(run_id, False), "Run unarchived", dry_run)


async def _archive(house: House, who: Principal, command: Archive, message: str, dry_run: bool) -> Json:
    await look_up(house, who, seen, house, who, command.run_id)
    run = await act(house, who, command, dry_run)
    return Json(marked({"message": message, "run": Renderer(house, who).run(run)}, dry_run))


class Status(Body):
    status: Word = Field(examples=["running"])
    exit_code: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)] | None = None
    error: Annotated[str, Field(max_length=10_000)] | None = None
    tmux_pane: Word | None = None
    wandb_dir: Annotated[str, Field(max_length=4096)] | None = None


@router.post(
    "/runs/{run_id}/status",
    summary="Report on a run that is carried elsewhere",
    responses={200: {"model": Message}, **faults(400, 404, 409)},
)
async def report_status(house: HouseDep, who: Caller, run_id: RunId, asked: Status, dry_run: DryRun = False) -> Json:
    """`finished` with an exit code that is not 0 becomes `failed`. Rota's own runs need none: it sees for itself."""
    run = await look_up(house, who, seen, house, who, run_id)
    authorise(who, Act.REPORT, run.user)
    word = asked.status.strip().lower()
    if word not in REPORTED:
        raise HTTPException(400, f"status: {word[:50]!r} is not one of {', '.join(REPORTED)}")
    labels = compact({"tmux_pane": asked.tmux_pane or None, "wandb_dir": asked.wandb_dir or None})
    try:
        for command in _reports(run, REPORTED[word], asked, labels):
            await act(house, who, command, dry_run)
    except (Conflict, Invalid) as error:
        raise HTTPException(400, error.message) from error
    return Json(marked({"message": "Status updated"}, dry_run))


def _reports(run: Run, state: RunState, asked: Status, labels: dict[str, str]) -> list[Command]:
    if state not in (RunState.HELD, RunState.QUEUED):
        return [Report(run.id, state, exit_code=asked.exit_code, error=asked.error or "", labels=labels or None)]
    commands: list[Command] = [Edit(run.id, labels=labels)] if labels else []
    if state is not run.state:
        commands.append(Hold(run.id) if state is RunState.HELD else Release(run.id))
    return commands


@router.post(
    "/runs/{run_id}/add-to-sweep",
    summary="Make a run part of a sweep",
    responses={200: {"model": Message}, **faults(404, 409)},
)
async def add_to_sweep(
    house: HouseDep,
    who: Caller,
    run_id: RunId,
    sweep_id: Annotated[str, Query(min_length=1, max_length=200)],
    dry_run: DryRun = False,
) -> Json:
    run = await look_up(house, who, seen, house, who, run_id)
    await look_up(house, who, sweep_for, house, who, sweep_id, "Sweep not found: {}", change=True)
    bound = run.state in ACTIVE or run.state is RunState.QUEUED
    if bound and run.spec.group not in ("", sweep_id):
        raise Conflict(f"Run is {RUN_WORDS[run.state]} in sweep {run.spec.group}; wait for its end or stop it")
    await act(house, who, Edit(run_id, group=sweep_id), dry_run)
    return Json(marked({"message": f"Run {run_id} added to sweep {sweep_id}"}, dry_run))


@router.post(
    "/runs/{run_id}/hold", summary="Hold a waiting run", responses={200: {"model": RunShape}, **faults(404, 409)}
)
async def hold_run(house: HouseDep, who: Caller, run_id: RunId, dry_run: DryRun = False) -> Json:
    return await _plain(house, who, Hold(run_id), dry_run)


@router.post(
    "/runs/{run_id}/release", summary="Let a held run go", responses={200: {"model": RunShape}, **faults(404, 409)}
)
async def release_run(house: HouseDep, who: Caller, run_id: RunId, dry_run: DryRun = False) -> Json:
    return await _plain(house, who, Release(run_id), dry_run)


class NewPriority(Body):
    priority: Priority


@router.patch(
    "/runs/{run_id}/priority",
    summary="Change a waiting run's priority",
    responses={200: {"model": RunShape}, **faults(404, 409)},
)
async def prioritise(house: HouseDep, who: Caller, run_id: RunId, asked: NewPriority, dry_run: DryRun = False) -> Json:
    return await _plain(house, who, Reprioritise(run_id, asked.priority), dry_run)


async def _plain(house: House, who: Principal, command: Any, dry_run: bool) -> Json:
    await look_up(house, who, seen, house, who, command.run_id)
    run = await act(house, who, command, dry_run)
    return Json(marked(Renderer(house, who).run(run), dry_run))
