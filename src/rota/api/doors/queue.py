"""The queue door: jobs in, in order, out. A job is a run; what comes in here is seen through every other door."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Annotated, NoReturn

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.config import JsonDict
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rota.api.act import act
from rota.api.answers import Json, Ready, array_of, dumps, listed
from rota.api.asked import Body, Count, Extras, Priority, Text, keyed_as_sent, spec_of, submit_of
from rota.api.bare import body_of, dry_run_of, key_of, served_by, switch_of
from rota.api.depends import Caller, DryRun, HouseDep, Key, Strict, seen
from rota.api.dry import IGNORED, marked
from rota.api.faults import faults
from rota.api.house import House
from rota.api.render.ending import Ending, Now, asked_grace, ending_of
from rota.api.render.job import RESUMES_ITSELF, Job, Jobs, Statistics, job_of, statistics_of
from rota.api.render.limits import warnings
from rota.api.render.unnamed import as_seen
from rota.api.router import Router
from rota.app.authz import Principal
from rota.app.commands import Cancel, Reprioritise
from rota.app.errors import Conflict, Full, Invalid, NotFound
from rota.app.problems import visible
from rota.core.run import Run

router = Router("queue")
jobs = Jobs()

NAMED = ("name", "labels")  # what this door's clients know as `run_id`; other names are the same at every door
EXAMPLE: JsonDict = {
    "run_id": "experiment-1",
    "user": "ann",
    "command": "python train.py",
    "gpu_count": 2,
    "priority": 2,
}
Name = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(visible)]


class Submission(Extras):
    run_id: Name = Field(description="Your own label; it becomes the run's name and need not exist.")
    user: Name = Field(description="For whom. Ignored where your token already says who you are.")
    command: Text | None = Field(None, description="A line for the shell. Required, unless there is an `argv`.")
    gpu_count: Count
    priority: Priority = 2

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})


class Submitted(BaseModel):
    success: bool
    job_id: str
    job: Job
    queue_position: int
    dry_run: bool | None = None
    ignored: list[str] | None = Field(None, description=IGNORED)
    warnings: list[str] | None = Field(None, description="What was asked for and does not hold on this server.")


class Queue(BaseModel):
    queued: list[Job]
    running: list[Job]
    statistics: Statistics
    paused: bool = Field(description="Nothing is started until somebody resumes it, or see `resumes_itself`.")
    pause_why: str
    resumes_itself: bool = Field(description=RESUMES_ITSELF)


class Canceled(Ending):
    success: bool
    message: str
    job: Job
    dry_run: bool | None = None


class NewPriority(Body):
    priority: Priority


class Moved(BaseModel):
    success: bool
    job: Job
    dry_run: bool | None = None


async def take(request: Request) -> Response:
    """The hottest route of the server: parsed once, answered from bytes."""
    house: House = request.app.state.house
    who, by = request.scope["rota.who"], request.scope["rota.by"]
    asked = await body_of(request, Submission)
    dry_run, ignored = dry_run_of(request), asked.ignored(switch_of(request, "strict"))
    try:
        spec = spec_of(
            house,
            asked,
            name=asked.run_id,
            command=asked.command,
            gpus=asked.gpu_count,
            priority=asked.priority,
            labels={"run_id": asked.run_id},
        )
        command = submit_of(
            spec,
            who,
            by,
            asked,
            user=asked.user,
            held=False,
            key=key_of(request),
            max_waiting=house.settings.queue_capacity,
            private=house.settings.private,
        )
        command = keyed_as_sent(command, None, gpus=asked.gpu_count)
        run: Run = await act(house, who, command, dry_run)
    except (Invalid, Full) as error:
        refuse_in_their_words(error)
    place = (house.service.place_of(run) if dry_run else house.service.position(run.id)) or 1  # None: has its GPUs
    warned = warnings(house, run.spec.request)
    if dry_run or ignored or warned:
        answered = {"success": True, "job_id": run.id, "job": job_of(run), "queue_position": place, **warned}
        return Json(marked(answered, dry_run, ignored))
    answer = b'{"success":true,"job_id":"%b","job":%b,"queue_position":%d}'
    return Ready(answer % (run.id.encode(), jobs.one(run), place))


def refuse_in_their_words(error: Invalid | Full) -> NoReturn:
    """With the fields as this door's clients know them."""
    if isinstance(error, Invalid) and error.field in NAMED:
        raise Invalid(f"run_id: {error.message.removeprefix(f'{error.field}: ')}", "run_id") from error
    if isinstance(error, Full) and error.field == "queue":
        raise HTTPException(400, error.message) from error
    raise error


async def submit(
    body: Submission,
    house: HouseDep,
    who: Caller,
    key: Key = None,
    dry_run: DryRun = False,
    strict: Strict = False,
) -> Json:
    """Once it is answered it is on disk. `queue_position` 1 = next."""
    raise AssertionError("served by take()")


router.add_api_route(
    "/queue/submit",
    submit,
    methods=["POST"],
    summary="Submit a job",
    responses={200: {"model": Submitted}, **faults(400, 409)},
    route_class_override=served_by(take),
)
HOT = {("POST", "/queue/submit"): take}


@router.get("/queue", summary="What waits, in order, and what runs", responses={200: {"model": Queue}, **faults()})
def queue(house: HouseDep, who: Caller) -> Response:
    """The whole list. A long one is sent in pieces (chunked), without a `Content-Length`."""
    view = house.service.view()
    rest = {
        "statistics": statistics_of(house.service.tally(), house.settings.queue_capacity),
        "paused": view.paused,
        "pause_why": view.pause_why,
        "resumes_itself": view.resumes_itself,
    }
    waiting, active = (array_of(jobs.many(_seen_by(house, who, runs))) for runs in (view.queue(), view.active()))
    return listed(chain([b'{"queued":'], waiting, [b',"running":'], active, [b"," + dumps(rest)[1:]]))


def _seen_by(house: House, who: Principal, runs: Iterable[Run]) -> Iterable[Run]:
    if not house.settings.private:
        return runs
    only_own = house.only_own(who)
    return (as_seen(run, only_own) for run in runs if house.may_see(who, run))


@router.get("/queue/{job_id}", summary="One job, ended ones too", responses={200: {"model": Job}, **faults(404)})
def job(house: HouseDep, who: Caller, job_id: str) -> Json:
    try:
        run = seen(house, who, job_id)
    except NotFound:
        raise NotFound(f"Job {job_id[:100]} not found", "job_id") from None
    return Json({**job_of(as_seen(run, house.only_own(who))), "queue_position": house.service.position(run.id)})


@router.delete(
    "/queue/{job_id}", summary="Cancel a job, running or not", responses={200: {"model": Canceled}, **faults(404)}
)
async def cancel(house: HouseDep, who: Caller, job_id: str, now: Now = False, dry_run: DryRun = False) -> Json:
    """A running one is asked to stop and killed after its grace, at the latest when the answer says; its GPUs are free
    when it is gone."""
    try:
        await _must_be_visible(house, who, job_id)
        run: Run = await act(house, who, Cancel(job_id, grace_s=asked_grace(now)), dry_run)
    except (NotFound, Conflict):
        raise NotFound(f"Job {job_id[:100]} not found or cannot be canceled", "job_id") from None
    answer = {
        "success": True,
        "message": f"Job {run.id} canceled",
        "job": job_of(as_seen(run, house.only_own(who))),
        **ending_of(house, run),
    }
    return Json(marked(answer, dry_run))


@router.patch("/queue/{job_id}/priority", summary="Move a queued job", responses={200: {"model": Moved}, **faults(404)})
async def move(house: HouseDep, who: Caller, job_id: str, body: NewPriority, dry_run: DryRun = False) -> Json:
    try:
        await _must_be_visible(house, who, job_id)
        run: Run = await act(house, who, Reprioritise(job_id, body.priority, held_too=False), dry_run)
    except (NotFound, Conflict):
        raise NotFound(f"Job {job_id[:100]} not found or not queued", "job_id") from None
    return Json(marked({"success": True, "job": job_of(as_seen(run, house.only_own(who)))}, dry_run))


async def _must_be_visible(house: House, who: Principal, job_id: str) -> None:
    """What is hidden from the caller is not there for them, and must not answer "not yours" instead."""
    if house.settings.private:
        await run_in_threadpool(seen, house, who, job_id)
