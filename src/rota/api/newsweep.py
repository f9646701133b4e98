"""A sweep as it is asked for, and its way into the books: its document and all its runs at once, or nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from rota.api import grid, once
from rota.api.act import act
from rota.api.asked import (
    NUMBER,
    Body,
    Count,
    Extras,
    Free,
    Making,
    Priority,
    Text,
    Word,
    compact,
    gpus_by_default,
    spec_of,
    submit_of,
)
from rota.api.house import House
from rota.api.lookups import look_up
from rota.api.newrun import Note
from rota.api.shelf import Shelf, owner_of
from rota.api.sweepbook import KIND
from rota.app.authz import Principal, Role, weaker
from rota.app.budget import MAX_MANY_BYTES, too_large
from rota.app.commands import Draft, PutRecord, Submit, SubmitMany
from rota.app.errors import Conflict, Full, Invalid
from rota.app.ports import Record
from rota.app.problems import visible
from rota.app.submit import digest_of
from rota.core.run import Run, RunState

MOST_RUNS = 10_000
MOST_DIFFS = 16 << 20  # bytes of diff, with all the runs of one sweep
Goal = Annotated[str, Field(max_length=100_000)]
Object = Free
MaxRuns = Annotated[int, Field(ge=1, le=MOST_RUNS), NUMBER]
Name = Annotated[str, Field(min_length=1, max_length=400), AfterValidator(visible)]
Shown = Annotated[Word, AfterValidator(visible)]
Stage = Literal["draft", "pending", "running"]
Where = Annotated[str, Field(max_length=4096)]


class WildSweep(Making):
    name: Name = "Wild Loop Sweep"
    goal: Goal = ""
    chat_session_id: Note | None = None
    user: Shown | None = None


class NewSweep(Extras):
    """Besides the sweep's own fields, every one that a run takes: they hold for each of its runs."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "lr", "base_command": "python train.py", "parameters": {"lr": [0.1, 0.01], "seed": 1}}
            ]
        }
    )

    name: Name
    base_command: Text
    parameters: Object
    workdir: Where | None = None
    max_runs: MaxRuns = 10
    auto_start: bool = False
    goal: Goal | None = None
    status: Stage | None = Field(None, description="draft: only written down. running: like `auto_start`.")
    ui_config: Object | None = None
    creation_context: Object | None = None
    chat_session_id: Note | None = None
    gpu_count: Count | None = None
    priority: Priority = 2
    user: Shown | None = None


class ChangedSweep(Body):
    name: Name | None = None
    base_command: Text | None = None
    parameters: Object | None = None
    workdir: Where | None = None
    max_runs: MaxRuns | None = None
    goal: Goal | None = None
    status: Stage | None = None
    ui_config: Object | None = None
    chat_session_id: Note | None = None


def _user(who: Principal, by: str, user: str | None) -> str:
    """As for a run: a name in the request counts only where nobody is authenticated."""
    return user if user and by in ("open", "shared") and who.role is Role.ADMIN else who.owner


async def make_wild(
    house: House, who: Principal, by: str, asked: WildSweep, *, key: str | None, dry_run: bool
) -> Record:
    body = {
        **asked.known(),
        "user": _user(who, by, asked.user),
        "base_command": "",
        "workdir": house.workdir,
        "parameters": {},
        "max_runs": None,
        "ui_config": None,
        "creation_context": None,
        "is_wild": True,
        "draft": False,
    }
    draft = Draft(KIND, once.name_for(KIND, who, key, 12), "")
    return await Shelf(house, who).add(draft, body, asked.known(), key, dry_run)


async def make_sweep(
    house: House, who: Principal, by: str, asked: NewSweep, *, key: str | None, dry_run: bool
) -> tuple[Record, Mapping[str, RunState]]:
    """Its document, and the states of the runs that were made just now."""
    key = key or asked.idempotency_key or None
    sweep_id = once.name_for(KIND, who, key, 12)
    request = asked.known()
    known = await look_up(house, who, house.service.record, KIND, sweep_id) if key else None
    if known is not None:
        return once.same(known, once.hash_of(request), key or ""), {}
    owner = _user(who, by, asked.user)
    body = _body(house, asked, owner)
    if asked.status == "draft":
        body[AUTHOR] = who.role
        await _must_be_makeable(house, who, asked, sweep_id, owner=owner, author=who.role)
        return await Shelf(house, who).add(Draft(KIND, sweep_id, ""), body, request, key, dry_run), {}
    body[once.REQUEST] = once.hash_of(request)
    return await _make(house, who, asked, sweep_id, owner=owner, body=body, key=key, dry_run=dry_run)


async def _make(
    house: House,
    who: Principal,
    asked: NewSweep,
    sweep_id: str,
    *,
    owner: str,
    body: Object,
    key: str | None,
    dry_run: bool,
    seen: str = "",
    author: Role | None = None,
) -> tuple[Record, Mapping[str, RunState]]:
    def make() -> list[Run]:
        submits = _submits(house, who, asked, sweep_id, owner=owner, key=key, most=asked.max_runs, author=author)
        command = SubmitMany(submits, (Draft(KIND, sweep_id, json.dumps(body), seen=seen),))
        made: list[Run] = house.service.try_out(who, command) if dry_run else house.service.do(who, command, None)
        return made

    runs = await house.sweeps.read(who.name, make)
    record = None if dry_run else await look_up(house, who, house.service.record, KIND, sweep_id)
    if record is None:
        record = Record(KIND, sweep_id, "", 0, runs[0].submitted_at, who.name, body)
    return record, {run.id: run.state for run in runs}


async def _must_be_makeable(
    house: House, who: Principal, asked: NewSweep, sweep_id: str, *, owner: str, author: Role
) -> None:
    """Refuse a draft of which no run could be made, above all one that asks for more than its author may have."""

    def try_out() -> None:
        submits = _submits(house, who, asked, sweep_id, owner=owner, key=None, most=1, author=author)
        with suppress(Full):  # there may be room by the time that it is started
            house.service.try_out(who, SubmitMany(submits))

    await house.sweeps.read(who.name, try_out)


def _author_of(record: Record, who: Principal) -> Role:
    """Return the weakest role of those who wrote this draft. One of an earlier version does not tell: it is an admin's
    only for the admin who made it."""
    kept = record.body.get(AUTHOR)
    if kept is not None:
        return Role(kept)
    return (
        Role.ADMIN if who.role is Role.ADMIN and record.by == who.name and owner_of(record) == who.owner else Role.USER
    )


def _body(house: House, asked: NewSweep, owner: str) -> Object:
    draft = asked.status == "draft"
    return {
        **asked.model_dump(include=_KEPT),
        "goal": asked.goal or "",
        "user": owner,
        "workdir": os.path.join(house.workdir, asked.workdir) if asked.workdir else house.workdir,
        "is_wild": False,
        "draft": draft,
        # of the runs to come; once they are there they know it themselves
        "run": asked.model_dump(include=_OF_RUNS, exclude_none=True) if draft else {},
    }


AUTHOR = "author_role"  # of a draft: by its rights the runs are made, whoever starts it
_KEPT = {"name", "base_command", "parameters", "max_runs", "chat_session_id", "ui_config", "creation_context"}
_OF_RUNS = set(Extras.model_fields) - {"idempotency_key", "argv"} | {"gpu_count", "priority", "auto_start"}


def _submits(
    house: House,
    who: Principal,
    asked: NewSweep,
    sweep_id: str,
    *,
    owner: str,
    key: str | None,
    most: int,
    author: Role | None,
) -> tuple[Submit, ...]:
    if not asked.base_command.strip():
        raise Invalid("base_command: is empty; give what to run", "base_command")
    cells = _cells(asked, most)
    if asked.workspace is not None and len(cells) * len(asked.workspace.diff) > MOST_DIFFS:
        raise Invalid("workspace: this diff is too large to be kept with so many runs; commit first", "workspace")
    gpus = gpus_by_default(house) if asked.gpu_count is None else asked.gpu_count
    held = not (asked.auto_start or asked.status == "running")
    found = []
    for number, cell in enumerate(cells, 1):
        spec = spec_of(
            house,
            asked,
            name=f"{asked.name} #{number}",
            command=grid.command_for(asked.base_command, cell),
            gpus=gpus,
            priority=asked.priority,
            workdir=asked.workdir,
            labels=compact({"chat_session_id": asked.chat_session_id, "sweep_params": cell}),
            group=sweep_id,
        )
        own_key = f"{once.hash_of([KIND, key])[:32]}#{number}" if key else None
        private = house.settings.private
        submit = submit_of(spec, who, "", asked, user=None, held=held, key=own_key, private=private)
        blind = submit.blind or (private and author not in (None, Role.ADMIN))
        submit = replace(submit, user="" if owner == who.owner else owner, author=author, blind=blind)
        found.append(replace(submit, digest=digest_of(submit)))
    return tuple(found)


def _cells(asked: NewSweep, most: int) -> list[dict[str, grid.Scalar]]:
    """The grid, refused before it is built where what each run takes x runs is over what one request may take."""
    count, texts = grid.weigh(asked.parameters, most)
    each = {
        "base_command": len(asked.base_command),
        "name": len(asked.name),
        "workdir": len(asked.workdir or ""),
        "tags": sum(map(len, asked.tags)),
        "chat_session_id": len(asked.chat_session_id or ""),
    }
    size = count * sum(each.values()) + texts
    if size > MAX_MANY_BYTES:
        largest = max(each, key=lambda name: each[name])
        raise too_large(largest if count * each[largest] >= texts else "parameters", size, count)
    return grid.cells(asked.parameters, most)


async def change_sweep(
    house: House,
    who: Principal,
    record: Record,
    states: Mapping[str, RunState],
    asked: ChangedSweep,
    *,
    dry_run: bool,
) -> tuple[Record, Mapping[str, RunState]]:
    """Raises Changed where somebody else has changed it since `record` was read. A draft is one until it is started,
    also where somebody has added runs to it meanwhile: who changes it is one of its authors."""
    given = asked.model_dump(exclude_none=True, exclude={"status"})
    if "workdir" in given:
        given["workdir"] = os.path.join(house.workdir, given["workdir"])
    body: Object = {**record.body, **given}
    fixed = [name for name in ("parameters", "max_runs") if body[name] != record.body[name]]
    is_draft = record.body["draft"]
    if states and not is_draft and (fixed or asked.status == "draft"):
        what = fixed[0] if fixed else "status"
        raise Conflict(f"{what}: this sweep has {len(states)} runs already; make a new sweep to change it", what)
    owner, seen = owner_of(record), json.dumps(record.body)
    if is_draft:
        kept = {name: value for name, value in body.items() if name in NewSweep.model_fields and value is not None}
        run = {name: value for name, value in body["run"].items() if name != "reservation" or value}
        whole = NewSweep(**{**kept, **run, "status": asked.status or "draft"})
        before = _author_of(record, who)
        author = weaker(before, who.role)
        if asked.status in ("pending", "running"):
            body |= {"draft": False, "run": {}}
            made, begun = await _make(
                house,
                who,
                whole,
                record.id,
                owner=owner,
                body=body,
                key=None,
                dry_run=dry_run,
                seen=seen,
                author=author,
            )
            return made, {**states, **begun}
        body[AUTHOR] = author
        if author is before:
            _submits(house, who, whole, record.id, owner=owner, key=None, most=1, author=author)
        else:
            await _must_be_makeable(house, who, whole, record.id, owner=owner, author=author)
    elif "base_command" in given and not given["base_command"].strip():
        raise Invalid("base_command: is empty; give what to run", "base_command")
    command = PutRecord(Draft(KIND, record.id, json.dumps(body), seen=seen), owner=owner)
    return await act(house, who, command, dry_run), states
