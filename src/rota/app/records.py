"""The doors' small documents: sweeps, alerts, token hashes, workspaces. Kept beside the runs, read by no decision."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from rota.app.authz import Act, Principal, Role, authorise
from rota.app.commands import Draft, PutRecord
from rota.app.desk import Desk
from rota.app.errors import Changed, Conflict, Full, Invalid, NotFound
from rota.app.ports import Record
from rota.app.problems import MAX_NAME, must_be_text, must_fit
from rota.core import events as e
from rota.core.nesting import MAX_KEPT, is_deeper

MAX_BODY = 1 << 20
MAX_OF_A_KIND = 100_000
MOST = {"workspace": 1_000_000}  # where that is too few: as a run may have one, and goes with it
PASSING = ("alert", "decision", "journey", "recommendation", "session", "sweep", "workspace")  # go when they are old
MAX_OF_ONE = 10_000  # of a kind that one caller wrote; what a run may have one of is bounded by its runs
MAX_AT_ONCE = 100
TOKEN = "token"  # noqa: S105 - the kind of record, no secret
ACTS = {TOKEN: Act.MANAGE_TOKENS, "cluster": Act.DESCRIBE}  # what writing one is, where it is nobody's own record


@dataclass(frozen=True, slots=True)
class Checked:
    """A draft that may be written, with what it says and what is there so far."""

    draft: Draft
    body: dict[str, Any]
    before: Record | None


def put_record(desk: Desk, who: Principal, command: PutRecord) -> Record:
    must_fit(command, PutRecord)
    kind, record_id = command.draft.kind, command.draft.id
    authorise(who, ACTS.get(kind, Act.RECORD), command.owner or who.owner)
    checked = _check(desk, who, command.draft)
    if checked.before is not None and command.fresh:
        raise Conflict(f"{kind} {record_id} is there already", "id")
    if checked.before is None and not command.draft.body:
        raise NotFound(f"no {kind} {record_id[:50]!r}", "id")
    return write(desk, who, checked)


def check_all(
    desk: Desk, who: Principal, drafts: tuple[Draft, ...], owner: str, *, blank: bool = False
) -> tuple[Checked, ...]:
    """Records that come with something else. `blank`: an empty id or parent will be the run's."""
    if not drafts:
        return ()
    if len(drafts) > MAX_AT_ONCE:
        raise Invalid(f"records: {len(drafts)} are too many, use at most {MAX_AT_ONCE}", "records")
    authorise(who, Act.RECORD, owner)
    if any(draft.kind in ACTS or not draft.body for draft in drafts):
        raise Invalid("records: only new documents come with a run, and no tokens", "records")
    return tuple(_check(desk, who, draft, blank=blank) for draft in drafts)


def write(desk: Desk, who: Principal, checked: Checked, run_id: str = "") -> Record:
    draft = checked.draft
    name, parent = draft.id or run_id, draft.parent or run_id
    text = json.dumps(checked.body, separators=(",", ":")) if draft.body else ""
    desk.write(e.RecordPut(at=desk.now, by=who.name, kind=draft.kind, id=name, parent=parent, body=text))
    first = desk.records.get((draft.kind, name)) or checked.before
    by = who.name if first is None else first.by
    for counted in ((draft.kind, ""), (draft.kind, by)):
        if counted in desk.kinds:
            desk.kinds[counted] += bool(draft.body) - (first is not None)
    if first is None:
        first = Record(draft.kind, name, parent, desk.state.version, desk.now, who.name, {})
    record = replace(first, parent=parent, body=checked.body)
    desk.records[draft.kind, name] = record if draft.body else None
    return record


def _check(desk: Desk, who: Principal, draft: Draft, *, blank: bool = False) -> Checked:
    must_be_text(kind=draft.kind, id=draft.id, parent=draft.parent)
    if not draft.kind or not (draft.id or blank):
        raise Invalid(f"id: a record needs a kind and an id of 1 to {MAX_NAME} characters", "id")
    body = _body(draft.body) if draft.body else {}
    before = desk.record(draft.kind, draft.id) if draft.id else None
    if draft.seen and (before is None or before.body != _body(draft.seen)):
        raise Changed(
            f"{draft.kind} {draft.id} was changed meanwhile; look at it again, and send the change anew", "id"
        )
    if before is None and draft.body:
        _must_have_room(desk, draft.kind)
        if who.role is not Role.ADMIN and draft.kind not in MOST:
            _must_leave_room(desk, draft.kind, who.name)
    return Checked(draft, body, before)


def _body(text: str) -> dict[str, Any]:
    if len(text) > MAX_BODY:
        raise Invalid(f"body: {len(text)} characters are too many, use at most {MAX_BODY}", "body")
    if is_deeper(text.encode("utf-8", "surrogatepass"), MAX_KEPT):
        raise Invalid(f"body: is nested deeper than {MAX_KEPT} levels of lists and objects", "body")
    try:
        found = json.loads(text)
        size = len(json.dumps(found, separators=(",", ":"), allow_nan=False))
    except (ValueError, RecursionError) as error:
        raise Invalid(f"body: is not JSON: {str(error)[:200]}", "body") from None
    if not isinstance(found, dict):
        raise Invalid(f"body: is not a JSON object but {type(found).__name__}", "body")
    if size > MAX_BODY:
        raise Invalid(f"body: {size} bytes are too many, use at most {MAX_BODY}", "body")
    return found


def _must_have_room(desk: Desk, kind: str) -> None:
    """Counted once and then kept count of: by `write`, and anew after old ones were dropped."""
    most = MOST.get(kind, MAX_OF_A_KIND)
    if _count(desk, kind, "", most) >= most:
        raise Full(f"{most} records of kind {kind} are kept already; remove some, or wait until old ones go")


def _must_leave_room(desk: Desk, kind: str, by: str) -> None:
    """One caller must not use up the room that all have together."""
    count = _count(desk, kind, by, MAX_OF_ONE)
    if count >= MAX_OF_ONE:
        raise Full(f"{by} has written {count} records of kind {kind}, the limit is {MAX_OF_ONE}; old ones go with time")


def _count(desk: Desk, kind: str, by: str, most: int) -> int:
    """How many there are, of one caller or (by = "") of all."""
    if (kind, by) not in desk.kinds:
        pending = (record for name, record in desk.records.items() if name[0] == kind and record is not None)
        new = sum(by in ("", record.by) for record in pending)
        desk.kinds[kind, by] = desk.store.count_records(kind, most, by) + new
    return desk.kinds[kind, by]
