"""The lease door: GPUs for a process that is there already, for as long as it lives.

The same routes stand in the main application and, for clients that send no token, on a port of their own. There a
lease belongs to the account of the process it is for, and is taken and given back by a caller of that account (or
root), as the kernel tells of the connection. Errors are `{"error": "text"}`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from rota.api.act import act
from rota.api.answers import Json, array_of, dumps, listed
from rota.api.bare import dry_run_of, key_of, served_by
from rota.api.depends import seen
from rota.api.dry import marked
from rota.api.errors import RETRY_AFTER_S, SHORT, STATUS, is_shortage
from rota.api.gate import UNAUTHORISED
from rota.api.guard import MAX_BODY
from rota.api.house import House
from rota.api.read_slots import has_gone
from rota.api.render.lease import Leased, lease
from rota.api.router import Router
from rota.app.authz import Principal, Role
from rota.app.commands import EndLease
from rota.app.errors import Conflict, Forbidden, Invalid, NotFound, Refused
from rota.app.leases import ROOT, Asked, Caller, Looked, NotAlive
from rota.app.ports import RunFilter, StoreError, Unseen
from rota.core.flat import Flat
from rota.core.nesting import MAX_ASKED, is_deeper
from rota.core.run import ENDED, Run, RunState

router = Router("leases")

SERVICE = "local-gpu-scheduler"  # the name by which clients of this field know such a door
NOBODY = ("pid", "open")  # how a caller is known of whom nothing is
OWN_TOKEN = ("token", "cookie")  # how one is known who showed a token of their own, not one that others have too
ENDED_SHOWN = 100
LOOK_AGAIN_S = 5.0  # whether who waits is still welcome
CODES: dict[type[Refused], int] = {**STATUS, Invalid: 400, NotAlive: 200}


class Trouble(BaseModel):
    error: str


class Status(BaseModel):
    service: str
    version: str
    uptime_s: int
    port: int
    gpus_total: int
    gpus_allocated: list[int]
    jobs_running: int
    jobs_queued: int
    jobs_total: int


class Ask(BaseModel):
    pid: Annotated[int, Field(description="Whose life the lease lasts; it must live on this machine.")]
    num_gpus: Annotated[int, Field(ge=0)] = 1
    start_ticks: Annotated[
        int | None,
        Field(
            description="When the process started, as the caller reads it: field 22 of /proc/PID/stat. Refused if the "
            "process with this number here started at another time, as where the caller is in a container."
        ),
    ] = None
    name: Annotated[str, Field(max_length=500, description="What it is called in the queue.")] = ""
    argv: Annotated[list[str], Field(description="What the process becomes once it has its GPUs.")] = []


class Given(BaseModel):
    job_id: str
    gpus: Annotated[str, Field(description="Such as 0,1; for CUDA_VISIBLE_DEVICES.")]
    dry_run: bool | None = None


class Back(BaseModel):
    job_id: str


class Released(BaseModel):
    released: bool
    dry_run: bool | None = None


def in_this_doors_shape(serve: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def served(request: Request) -> Response:
        try:
            return await serve(request)
        except Refused as error:
            code = next((code for kind, code in reversed(CODES.items()) if isinstance(error, kind)), 400)
            return _trouble(error.message, code)
        except RequestValidationError as error:
            first = error.errors()[0]
            return _trouble(f"{first['loc'][-1]}: {first['msg']}", 400)
        except ClientDisconnect:  # or the guard's word for a body without end
            return _trouble(f"the body is larger than {MAX_BODY} bytes, or did not come in time", 413)
        except StoreError:
            return _trouble("the store does not answer just now; ask again", 503)
        except Unseen as error:
            return _trouble(f"the process cannot be looked at: {error.strerror}; ask again", 503)
        except (OSError, RuntimeError) as error:
            if not is_shortage(error):
                raise
            return _trouble(SHORT, 503)

    return served


def _trouble(text: str, code: int) -> Json:
    return Json({"error": text}, code, {"Retry-After": RETRY_AFTER_S} if code in (429, 503) else None)


# -- looking --------------------------------------------------------------------------------------------------------
@in_this_doors_shape
async def status(request: Request) -> Response:
    house: House = request.app.state.house
    view, counts = house.service.view(), house.service.tally().counts
    flat = Flat(view.nodes.values())
    held = (number for run in view.active() for number in flat.numbers(run))
    return Json(
        {
            "service": SERVICE,
            "version": house.version,
            "uptime_s": int(max(0.0, time.time() - house.started_at)),
            "port": house.settings.lease_port or house.settings.port,
            "gpus_total": flat.total,
            "gpus_allocated": sorted(held),
            "jobs_running": counts.get(RunState.STARTING, 0) + counts.get(RunState.RUNNING, 0),
            "jobs_queued": counts.get(RunState.QUEUED, 0),
            "jobs_total": sum(counts.values()),
        }
    )


@in_this_doors_shape
async def jobs(request: Request) -> Response:
    """What runs, what waits in its order, and the newest that have ended."""
    house: House = request.app.state.house
    who: Principal = request.scope["rota.who"]
    if request.scope["rota.by"] == "pid":
        who = await house.looks.read(request.scope["rota.owner"], partial(_reader, house, request.scope))
    return await run_in_threadpool(_jobs, house, who)


def _reader(house: House, scope: Mapping[str, Any]) -> Principal:
    """Who looks at the port without tokens: the account of the connection, as on the unix socket."""
    uid = _uid(scope)
    person = None if uid is None else house.gate.peer(uid)
    known: Principal = scope["rota.who"] if person is None else person
    return known


def _jobs(house: House, who: Principal) -> Response:
    view = house.service.view()
    flat = Flat(view.nodes.values())
    ended, _ = house.service.runs_page(RunFilter(states=ENDED, limit=ENDED_SHOWN))
    runs: list[Run] = [*view.active(), *view.queue(), *(run for run in ended if run.id not in view.runs)]
    shown = (run for run in runs if house.may_see(who, run))
    return listed(array_of(dumps(lease(flat, run, own=house.may_see_secrets(who, run))) for run in shown))


# -- taking and giving back -----------------------------------------------------------------------------------------
@in_this_doors_shape
async def acquire(request: Request) -> Response:
    house: House = request.app.state.house
    body = await _object(request)
    pid, gpus = _whole(body, "pid"), _whole(body, "num_gpus", 1)
    key, becomes = key_of(request), _becomes(body)
    asker = request.scope["rota.party"]
    # A look may take as long as the process likes, so a person and all agents of that person share the threads.
    person = request.scope["rota.owner"]
    started = _whole(body, "start_ticks") if body.get("start_ticks") is not None else None
    caller, looked = await house.looks.read(person, partial(_look, house, request.scope, pid, started))
    if dry_run_of(request):
        run = await house.trials.read(asker, partial(house.leases.try_out, caller, looked, gpus, key, **becomes))
        return Json({"job_id": run.id, "gpus": "", "dry_run": True})
    return await _granted(house.leases.ask(caller, looked, gpus, key, **becomes), request)


def _look(house: House, scope: Mapping[str, Any], pid: int, started: int | None) -> tuple[Caller, Looked]:
    shares_pids: Callable[[], bool] | None = scope.get("rota.shares_pids")
    same = shares_pids is None or shares_pids()
    looked = house.leases.look(pid, scope["rota.owner"], started, shares_pids=same)
    return _caller(scope), looked


def _caller(scope: Mapping[str, Any]) -> Caller:
    by = scope["rota.by"]
    return Caller(None if by in NOBODY else scope["rota.who"], _uid(scope), own_token=by in OWN_TOKEN)


def _uid(scope: Mapping[str, Any]) -> int | None:
    """The account at the other end of the connection, by the kernel's word. Not for the event loop: a kernel that does
    not find a socket by its ends has a table of all, whose length others decide."""
    look: Callable[[], int | None] | None = scope.get("rota.peer_uid")
    return look() if look is not None else None


async def _granted(asked: Asked, request: Request) -> Response:
    """Wait for the GPUs and watch the client meanwhile: one that goes must not keep its place, nor one whose token is
    revoked or expires."""
    holds: Callable[[], bool] = request.scope["rota.holds"]
    granted = asyncio.wrap_future(asked.granted)
    gone = asyncio.create_task(_gone(request))
    try:
        while holds() and not granted.done() and not gone.done() and not has_gone(request.scope):
            await asyncio.wait((granted, gone), timeout=LOOK_AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:  # the server stops: who waits keeps its place, and finds it again by its key
        granted.add_done_callback(_unheard)
        return _trouble("the server is stopping; ask the next one", 503)
    finally:
        gone.cancel()
    if not holds() and not (granted.done() and granted.exception()):
        asked.give_back()  # it may have been given at this moment, of which the event loop has not heard yet
        granted.cancel()  # else it and what it waits for refer to each other
        return _trouble(UNAUTHORISED.why, 401)
    if not granted.done():
        asked.leave()
        granted.cancel()  # as above
        return _trouble("the client is gone", 400)
    grant = granted.result()
    return Json({"job_id": grant.run_id, "gpus": ",".join(map(str, sorted(grant.gpus)))})


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _unheard(granted: asyncio.Future[Any]) -> None:
    if not granted.cancelled():
        granted.exception()  # looked at, so that nobody complains of it


@in_this_doors_shape
async def release(request: Request) -> Response:
    house: House = request.app.state.house
    who: Principal = request.scope["rota.who"]
    run_id = (await _object(request)).get("job_id")
    if not isinstance(run_id, str):
        raise Invalid("job_id: give the id of a lease, as text", "job_id")
    if request.scope["rota.by"] == "pid":
        try:
            look = partial(_owner_at_this_port, house, run_id, request.scope)
            who = await house.looks.read(request.scope["rota.owner"], look)
        except (Conflict, Forbidden):
            if house.settings.private:  # there is nothing to be learnt here by trying ids
                raise NotFound(f"no run {run_id[:50]!r}", "run_id") from None
            raise
    elif house.only_own(who):
        await run_in_threadpool(seen, house, who, run_id)  # a hidden run looks like one that is not there
    dry_run = dry_run_of(request)
    await act(house, who, EndLease(run_id), dry_run)
    return Json(marked({"released": True}, dry_run))


def _owner_at_this_port(house: House, run_id: str, scope: Mapping[str, Any]) -> Principal:
    """Without a token nobody is known, so only what was taken without one can be given back without one: a lease that
    belongs to the account of its process, by a caller of that account."""
    run = house.service.run(run_id)
    holder = run.spec.holder
    if holder is None or run.state in ENDED:
        raise Conflict(f"{run_id} is no lease, or one that is over")
    found = house.processes.look(holder.pid, scope["rota.owner"])
    if found is None or found.holder != holder or found.user != run.user:
        raise Forbidden(f"{run_id} was not taken through this port; give it back with its owner's token")
    uid = _uid(scope)
    if uid is None:
        raise Forbidden(
            "the kernel cannot tell which account this call is from, so the lease cannot be taken for yours; give it "
            "back with a token (header X-Auth-Token), or end its process"
        )
    if uid not in (found.uid, ROOT):
        raise Forbidden(f"{run_id} belongs to {run.user}, who alone may give it back")
    return Principal(run.user, Role.USER)


async def _object(request: Request) -> dict[str, Any]:
    content = await request.body() or b"null"
    if is_deeper(content, MAX_ASKED):
        raise Invalid(f"the body is nested deeper than {MAX_ASKED} levels of lists and objects")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise Invalid("the body is not JSON") from None
    if not isinstance(body, dict):
        raise Invalid('the body must be a JSON object such as {"pid": 4711, "num_gpus": 1}')
    return body


def _whole(body: dict[str, Any], name: str, otherwise: int | None = None) -> int:
    value = body.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Invalid(f"{name}: is missing" if value is None else f"{name}: must be a whole number", name)
    return value


def _becomes(body: dict[str, Any]) -> dict[str, Any]:
    """What the process will be once it has its GPUs, where it says so: a name, and words."""
    name, argv = body.get("name", ""), body.get("argv", [])
    if not isinstance(name, str):
        raise Invalid("name: must be text", "name")
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        raise Invalid('argv: must be a list of words such as ["python", "train.py"]', "argv")
    return {"name": name, "argv": argv}


# -- where they stand -----------------------------------------------------------------------------------------------
def lease_app(house: House) -> Starlette:
    """For the port of its own: these routes and nothing else."""
    routes = [Route(path, serve, methods=[method]) for path, method, serve in SERVED]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _strange})
    app.router.redirect_slashes = False
    app.state.house = house
    return app


async def _strange(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {404: "not found", 405: "method not allowed"}.get(error.status_code, error.detail)
    return _trouble(text, error.status_code)


SERVED = (
    ("/status", "GET", status),
    ("/jobs", "GET", jobs),
    ("/acquire", "POST", acquire),
    ("/release", "POST", release),
)

HOT = {("POST", "/acquire"): acquire}


def _answers(model: Any, *codes: int) -> dict[int | str, dict[str, Any]]:
    words = {400: "A field is wrong.", 404: "No such lease.", 409: "Not in the state it is in.", 413: "Too large."}
    words |= {401: "No valid token.", 403: "Not allowed.", 421: "Not our name.", 429: "Too many.", 503: "Not now."}
    troubles: dict[int | str, dict[str, Any]] = {
        code: {"model": Trouble, "description": words[code]} for code in (401, 403, 413, 421, 429, 503, *codes)
    }
    return {200: {"model": model}, **troubles}


def _document() -> None:
    def look() -> None: ...
    def ask(body: Ask, dry_run: bool = False) -> None: ...
    def give_back(body: Back, dry_run: bool = False) -> None: ...

    shapes: dict[str, tuple[Callable[..., None], str, dict[int | str, dict[str, Any]]]] = {
        "/status": (look, "How many GPUs are leased", _answers(Status)),
        "/jobs": (look, "Who holds and who waits", _answers(list[Leased])),
        "/acquire": (ask, "Lease GPUs for a process; waits for them", _answers(Given | Trouble, 400, 409)),
        "/release": (give_back, "Give a lease back", _answers(Released, 400, 404, 409)),
    }
    for path, method, serve in SERVED:
        shape, summary, answers = shapes[path]
        bare = served_by(serve)
        router.add_api_route(
            path, shape, methods=[method], summary=summary, responses=answers, route_class_override=bare
        )


_document()
