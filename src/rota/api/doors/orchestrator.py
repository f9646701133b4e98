"""The orchestrator door: is scheduling on, by which policy, and how it has gone since the server started."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rota.api.act import act
from rota.api.answers import Json
from rota.api.asked import NUMBER, Body, Exact, Word
from rota.api.depends import Caller, DryRun, HouseDep
from rota.api.dry import marked
from rota.api.faults import faults
from rota.api.house import House
from rota.api.lookups import look_up
from rota.api.render.gpus import Picture
from rota.api.render.job import RESUMES_ITSELF, Statistics, statistics_of
from rota.api.router import Router
from rota.app.authz import Principal
from rota.app.commands import Pause, Resume, SetPolicy
from rota.app.errors import Invalid
from rota.core.knobs import ABOUT, FIELDS
from rota.core.policy import LARGEST, Backfill, Limits, Ordering, Packing, Policy
from rota.core.presets import NAMES, name_of, named

router = Router("orchestrator")
changing = asyncio.Lock()  # a change is made to what the last one left

MOST_EXPRESS = 4.0  # times the square root of all GPUs: of 16 that is all of them
Number = Annotated[int, Field(ge=0, le=int(LARGEST)), NUMBER]
Person = Annotated[Word, Field(min_length=1)]
Seconds = Annotated[float, Field(ge=0, le=LARGEST), NUMBER]


def _knob(word: str) -> Any:
    return Field(None, description=ABOUT[word])


class LimitsOf(Body):
    """Of one person; 0 = no limit."""

    model_config = ConfigDict(extra="forbid")  # a limit that is misspelt would be none

    running: Number = 0
    gpus: Number = 0
    queued: Number = 0

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if isinstance(value, dict | cls):
            return value
        raise ValueError('is no set of limits; give them by name, such as {"gpus": 4}, of running, gpus and queued')


class PolicyOf(BaseModel):
    policy: str = Field(description="The whole policy by its name, or the name of its order where it is like none.")
    scheduling_algorithm: Ordering
    max_concurrent_jobs: int
    enable_auto_retry: bool
    enable_preemption: bool
    backfill: Backfill
    backfill_depth: int
    aging_seconds: float
    half_life_seconds: float
    default_duration_seconds: float
    enable_correction: bool
    margin: float
    min_run_seconds: float
    restart_cost_seconds: float
    patience: float
    express: float
    packing: Packing
    max_reserved_gpu_seconds: float
    max_grace_seconds: float
    max_checkpoint_grace_seconds: float
    max_queue: int
    limits: LimitsOf
    user_limits: dict[str, LimitsOf]


class PolicyChange(Exact):
    """What is left out stays as it is."""

    policy: Literal[NAMES] | None = Field(  # type: ignore[valid-type]
        None,
        description="A policy by its name: sets the order, backfill, preemption and correction; limits and all other "
        "knobs stay as they are, or as they are given beside it.",
    )
    scheduling_algorithm: Ordering | None = _knob("scheduling_algorithm")
    max_concurrent_jobs: Number | None = _knob("max_concurrent_jobs")
    enable_auto_retry: bool | None = _knob("enable_auto_retry")
    enable_preemption: bool | None = _knob("enable_preemption")
    backfill: Backfill | None = _knob("backfill")
    backfill_depth: Number | None = _knob("backfill_depth")
    aging_seconds: Annotated[float, Field(ge=1, le=LARGEST), NUMBER] | None = _knob("aging_seconds")
    half_life_seconds: Annotated[float, Field(ge=60, le=LARGEST), NUMBER] | None = _knob("half_life_seconds")
    default_duration_seconds: Annotated[float, Field(ge=1, le=LARGEST), NUMBER] | None = _knob(
        "default_duration_seconds"
    )
    enable_correction: bool | None = _knob("enable_correction")
    margin: Annotated[float, Field(ge=1, le=LARGEST), NUMBER] | None = _knob("margin")
    min_run_seconds: Seconds | None = _knob("min_run_seconds")
    restart_cost_seconds: Seconds | None = _knob("restart_cost_seconds")
    patience: Annotated[float, Field(ge=1e-3, le=LARGEST), NUMBER] | None = _knob("patience")
    express: Annotated[float, Field(ge=0, le=MOST_EXPRESS), NUMBER] | None = _knob("express")
    packing: Packing | None = _knob("packing")
    max_reserved_gpu_seconds: Seconds | None = _knob("max_reserved_gpu_seconds")
    max_grace_seconds: Seconds | None = _knob("max_grace_seconds")
    max_checkpoint_grace_seconds: Seconds | None = _knob("max_checkpoint_grace_seconds")
    max_queue: Annotated[int, Field(ge=1, le=int(LARGEST)), NUMBER] | None = _knob("max_queue")
    limits: LimitsOf | None = _knob("limits")
    user_limits: Annotated[dict[Person, LimitsOf], Field(max_length=10_000)] | None = _knob("user_limits")

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_concurrent_jobs": 10, "enable_auto_retry": True}]})


APART = ("limits", "user_limits")  # are no plain values
THEIRS_OURS = {word: field for word, field in FIELDS.items() if word not in APART}


class Stats(BaseModel):
    jobs_scheduled: int
    jobs_failed: int
    jobs_completed: int
    scheduling_cycles: int
    last_cycle_time: float | None


class Resources(BaseModel):
    total_gpus: int
    available_gpus: int
    allocated_gpus: int


class Status(BaseModel):
    running: bool
    pause_why: str
    resumes_itself: bool = Field(description=RESUMES_ITSELF)
    policy: PolicyOf
    stats: Stats
    resource_summary: Resources
    queue_summary: Statistics


class Switched(BaseModel):
    success: bool
    message: str
    status: Status
    dry_run: bool | None = None


class Changed(BaseModel):
    success: bool
    policy: PolicyOf
    dry_run: bool | None = None


@router.get("/orchestrator/status", summary="Is scheduling on, and how", responses={200: {"model": Status}, **faults()})
def status(house: HouseDep, who: Caller) -> Json:
    return Json(status_of(house, who))


@router.post(
    "/orchestrator/start", summary="Start what waits, from now on", responses={200: {"model": Switched}, **faults()}
)
async def start(house: HouseDep, who: Caller, dry_run: DryRun = False) -> Json:
    """Scheduling runs from the server's start; this ends a pause. May be called again and again."""
    paused = await act(house, who, Resume(), dry_run)
    return await look_up(house, who, _switched, house, who, "Orchestration agent started", paused, dry_run)


@router.post("/orchestrator/stop", summary="Start nothing more", responses={200: {"model": Switched}, **faults()})
async def stop(house: HouseDep, who: Caller, dry_run: DryRun = False) -> Json:
    """What runs runs on. May be called again and again."""
    paused = await act(house, who, Pause(), dry_run)
    return await look_up(house, who, _switched, house, who, "Orchestration agent stopped", paused, dry_run)


def _switched(house: House, who: Principal, message: str, paused: bool, dry_run: bool) -> Json:
    now = status_of(house, who)
    now["running"] = not paused and not now["resumes_itself"]
    return Json(marked({"success": True, "message": message, "status": now}, dry_run))


@router.put("/orchestrator/policy", summary="Change how is scheduled", responses={200: {"model": Changed}, **faults()})
async def set_policy(house: HouseDep, who: Caller, body: PolicyChange, dry_run: DryRun = False) -> Json:
    async with changing:
        changed = await act(house, who, SetPolicy(_changed(house.service.policy(), body)), dry_run)
    return Json(marked({"success": True, "policy": policy_of(changed)}, dry_run))


def _changed(policy: Policy, body: PolicyChange) -> Policy:
    if body.policy is not None:
        policy = named(body.policy, policy)
        _must_agree(body, policy)
    given = body.model_dump(exclude_none=True, include=set(THEIRS_OURS))
    changes: dict[str, Any] = {THEIRS_OURS[name]: value for name, value in given.items()}
    if body.limits is not None:
        changes["limits"] = Limits(**body.limits.model_dump())
    if body.user_limits is not None:
        changes["user_limits"] = {user: Limits(**one.model_dump()) for user, one in body.user_limits.items()}
    return replace(policy, **changes)


def _must_agree(body: PolicyChange, meant: Policy) -> None:
    """A name stands for an order and a way to backfill: whoever says another one beside it may mean either."""
    for field in ("scheduling_algorithm", "backfill"):
        said, stands_for = getattr(body, field), getattr(meant, THEIRS_OURS[field])
        if said is not None and said != stands_for:
            raise Invalid(
                f"{field}: {said} contradicts policy {body.policy}, which stands for {field} {stands_for}; give one of "
                f"the two, {field} or policy",
                field,
            )


def policy_of(policy: Policy, seen_by: str | None = None) -> dict[str, Any]:
    """`seen_by`: who is shown the own limits alone; None = somebody who sees all."""
    plain = {theirs: getattr(policy, ours) for theirs, ours in THEIRS_OURS.items()}
    return {
        "policy": name_of(policy),
        **plain,
        "limits": _limits(policy.limits),
        "user_limits": {user: _limits(one) for user, one in policy.user_limits.items() if seen_by in (None, user)},
    }


def _limits(limits: Limits) -> dict[str, int]:
    return {"running": limits.running, "gpus": limits.gpus, "queued": limits.queued}


def status_of(house: House, who: Principal) -> dict[str, Any]:
    view, tally = house.service.view(), house.service.tally()
    return {
        "running": not view.paused,
        "pause_why": view.pause_why,
        "resumes_itself": view.resumes_itself,
        "policy": policy_of(view.policy, who.owner if house.only_own(who) else None),
        "stats": {
            "jobs_scheduled": tally.scheduled,
            "jobs_failed": tally.failed,
            "jobs_completed": tally.completed,
            "scheduling_cycles": tally.passes,
            "last_cycle_time": tally.last_pass_at,
        },
        "resource_summary": Picture(house, who).summary(),
        "queue_summary": statistics_of(tally, house.settings.queue_capacity),
    }
