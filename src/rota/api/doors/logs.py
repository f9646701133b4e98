"""What a run wrote, what was written down about it, and what it left behind."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path as Directory
from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from rota.api.answers import Json
from rota.api.depends import Caller, HouseDep, seen
from rota.api.faults import faults
from rota.api.filereads import account_of
from rota.api.follow import Place, Source, follow
from rota.api.house import House
from rota.api.patient import Patient
from rota.api.render.links import wandb_dir
from rota.api.render.text import page, raw_page
from rota.api.render.unnamed import event_unnamed
from rota.api.render.whole import tail
from rota.api.router import Router
from rota.api.telling import Telling
from rota.app.authz import Principal
from rota.app.ports import FileBusy, LogChunk, StoredEvent
from rota.core.ids import attempt_id
from rota.core.run import ENDED, Run

router = Router("logs")
CAP = 102_400
MOST_FILES = 1000
ELSEWHERE = "its output went to its own terminal"
RunId = Annotated[str, Path(max_length=200)]
Offset = Annotated[int, Query(description="In bytes; a negative one counts from the end.")]
Limit = Annotated[int, Query(ge=1, description=f"In bytes; more than {CAP} is taken for {CAP}.")]
Attempt = Annotated[int | None, Query(ge=1, le=999_999, description="1 is the first; default: the newest.")]
Encoding = Annotated[
    Literal["text", "base64"],
    Query(description="text: what is not UTF-8 is replaced by U+FFFD. base64: every byte as it was written."),
]
LastId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=100)]


class Page(BaseModel):
    content: str
    offset: int
    total_size: int
    has_more_before: bool
    has_more_after: bool
    next_offset: int = Field(description="In bytes: where the next piece begins.")
    encoding: str | None = Field(None, description="`base64` where that was asked for.")
    note: str | None = Field(None, description="Of a lease: where its output is. Rota does not have it.")


class Artifact(BaseModel):
    name: str
    path: str
    type: str


STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/event-stream": {}},
        "description": "`data:` is JSON: `{type: initial, content}`, `{type: delta, content}`, `{type: done, status}`.",
    }
}


@router.get("/runs/{run_id}/logs", summary="A piece of a run's log", responses={200: {"model": Page}, **faults(404)})
async def logs(
    house: HouseDep,
    who: Caller,
    run_id: RunId,
    offset: Offset = -10_000,
    limit: Limit = 10_000,
    attempt: Attempt = None,
    encoding: Encoding = "text",
) -> Json:
    """The next piece begins at `next_offset`. No log yet is an empty one; one that cannot be
    read without waiting long is a 503."""

    run = await run_in_threadpool(seen, house, who, run_id)
    read = partial(house.service.log, run_id, offset, min(limit, CAP), attempt)
    chunk = await house.files.read(run_id, read, account=account_of(run))
    note = {} if run.spec.holder is None else {"note": ELSEWHERE}
    content = raw_page(chunk) if encoding == "base64" else page(chunk, run.state in ENDED)
    return Json({**content, **note})


@router.get(
    "/runs/{run_id}/logs/stream",
    summary="A run's log as it grows",
    responses={**STREAM, **faults(404)},
    response_model=None,
)
def stream_logs(
    house: HouseDep, who: Caller, run_id: RunId, request: Request, last_event_id: LastId = None
) -> Response:
    """First the end of what is there, then what comes, over all further attempts, until the run has ended. Whoever
    comes back with `Last-Event-ID` gets what it missed."""
    run = seen(house, who, run_id)

    def read(attempt: int, offset: int, limit: int) -> LogChunk:
        return house.service.log(run_id, offset, limit, attempt)

    source = Source(lambda: house.service.run(run_id), read, lambda run: run.attempts_made, account=account_of(run))
    return _stream(house, who, request, run_id, source, Place.read(last_event_id))


@router.get(
    "/runs/{run_id}/sidecar-logs",
    summary="What was written down about a run",
    responses={200: {"model": Page}, **faults(404)},
)
def sidecar_logs(house: HouseDep, who: Caller, run_id: RunId, offset: Offset = -10_000, limit: Limit = 10_000) -> Json:
    """A line for each thing that happened to it."""
    run = seen(house, who, run_id)
    return Json(page(_telling(house, who, run_id).read(offset, min(limit, CAP)), run.state in ENDED))


@router.get(
    "/runs/{run_id}/sidecar-logs/stream",
    summary="What is written down about a run, as it happens",
    responses={**STREAM, **faults(404)},
    response_model=None,
)
def stream_sidecar(
    house: HouseDep, who: Caller, run_id: RunId, request: Request, last_event_id: LastId = None
) -> Response:
    seen(house, who, run_id)
    telling = _telling(house, who, run_id)

    def read(attempt: int, offset: int, limit: int) -> LogChunk:
        return telling.read(offset, limit)

    source = Source(lambda: house.service.run(run_id), read, lambda run: 1, worded=True)
    return _stream(house, who, request, run_id, source, Place.read(last_event_id))


def _stream(
    house: House, who: Principal, request: Request, run_id: str, source: Source, since: Place | None
) -> Response:
    house.bell.must_have_room(who)
    party: str = request.scope["rota.owner"]
    return Patient(
        follow(run_id, source, house.bell, house.followed, since, who=who, rendering=house.rendering, party=party)
    )


def _telling(house: House, who: Principal, run_id: str) -> Telling:
    def events(after: int, limit: int) -> Sequence[StoredEvent]:
        found = house.service.events(after, limit, run_id)
        return [replace(one, event=event_unnamed(one.event)) for one in found] if house.only_own(who) else found

    return Telling(events)


@router.get(
    "/runs/{run_id}/artifacts",
    summary="What a run left behind",
    responses={200: {"model": list[Artifact]}, **faults(404)},
)
async def artifacts(house: HouseDep, who: Caller, run_id: RunId) -> Json:
    """Logs of its attempts, what lies in its checkpoint directory, and its W&B directory. `path` is on the server's
    disk."""
    run = await run_in_threadpool(seen, house, who, run_id)
    written, wandb = await house.files.read(run_id, partial(_logged, house, run), account=account_of(run))
    saved = Directory(house.service.checkpoints.of(run_id, run.spec.account).path)
    left: list[dict[str, Any]] = []
    if run.attempts_made:
        # A job can hold the directory, but not the server's own files: the two do not share threads.
        left = await house.job_dirs.read(run_id, partial(_files, saved), account=account_of(run))
    return Json([*written, *left, *wandb])


def _logged(house: House, run: Run) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the logs of the attempts, and the W&B directory that the newest one names."""
    root = house.settings.data_dir.expanduser().absolute()
    found: list[dict[str, Any]] = []
    for number in range(max(1, run.attempts_made - MOST_FILES + 1), run.attempts_made + 1):
        size = _log_size(house, run.id, number)
        if size != 0:
            where = root / "attempts" / attempt_id(run.id, number) / "log"
            url = f"/runs/{run.id}/logs?attempt={number}"
            found.append(
                {"name": f"log of attempt {number}", "path": str(where), "type": "log", "size": size, "url": url}
            )
    wandb = run.spec.labels.get("wandb_dir") or wandb_dir(tail(house, run.id), run.spec.workdir)
    if not wandb:
        return found, []
    name = os.path.basename(wandb.rstrip("/")) or wandb
    return found, [{"name": name, "path": wandb, "type": "wandb", "size": None}]


def _log_size(house: House, run_id: str, number: int) -> int | None:
    """None = there is one that cannot be opened just now."""
    try:
        return house.service.log(run_id, 0, 0, number).size
    except FileBusy:
        return None


def _files(directory: Directory) -> list[dict[str, Any]]:
    """Only what lies in it: the job owns this place, so links are named as such and nothing is followed."""
    found: list[dict[str, Any]] = []
    try:
        if not stat.S_ISDIR(directory.lstat().st_mode):
            return []
        with os.scandir(directory) as entries:
            for entry in entries:
                if len(found) >= MOST_FILES:
                    break
                facts = entry.stat(follow_symlinks=False)
                kind = "directory" if entry.is_dir(follow_symlinks=False) else "link" if entry.is_symlink() else "file"
                name, path = _text(entry.name), _text(entry.path)
                found.append({"name": name, "path": path, "type": kind, "size": facts.st_size})
    except OSError:  # not made yet, gone while we looked, or not ours to read
        return found
    return sorted(found, key=lambda item: str(item["name"]))


def _text(name: str) -> str:
    """A name of a file may be any bytes; half a surrogate in an answer is none that strict readers take."""
    return os.fsencode(name).decode(errors="replace")
