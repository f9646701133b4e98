"""Which events of runs belong into somebody's journey, without ever reading all there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from rota.api.house import House
from rota.api.render.journey import entries
from rota.api.render.unnamed import event_unnamed
from rota.app.authz import Principal
from rota.app.errors import NotFound
from rota.app.ports import RunFilter, StoredEvent
from rota.core import events as e
from rota.core.run import Run

NEWEST_EVENTS = 5000  # looked through when nothing narrower is asked for
NEWEST_RUNS = 1000  # looked through for those of a session
AT_ONCE = 50  # events read and decoded together: some have a whole spec
PER_RUN = 500
PER_SESSION = 200  # runs


def happened(
    house: House, who: Principal, run_id: str | None, session_id: str | None, limit: int
) -> list[dict[str, Any]]:
    """The newest `limit`, newest first."""
    found: list[dict[str, Any]] = []
    runs: dict[str, Run | None] = {}
    for stored in _events(house, run_id, session_id):
        if len(found) >= limit:
            break
        if not isinstance(stored.event, e.RunEvent):
            continue
        run = _run(house, who, stored.event.run_id, runs)
        if run is not None and session_id in (None, run.spec.labels.get("chat_session_id")):
            found += reversed(list(entries(_as_seen(house, who, stored), run)))
    return found[:limit]


def _events(house: House, run_id: str | None, session_id: str | None) -> Iterable[StoredEvent]:
    """Newest first."""
    if run_id is not None:
        return _of_run(house, run_id)[::-1]
    if session_id is None:
        return _newest(house)
    mine = list(islice(_of_session(house, session_id), PER_SESSION))
    found = [stored for of_session in mine for stored in _of_run(house, of_session)]
    return sorted(found, key=lambda stored: stored.seq, reverse=True)


def _newest(house: House) -> Iterator[StoredEvent]:
    last = house.service.view().version
    first = max(0, last - NEWEST_EVENTS)
    while last > first:
        after = max(first, last - AT_ONCE)
        yield from [stored for stored in house.service.events(after, last - after) if stored.seq <= last][::-1]
        last = after


def _of_run(house: House, run_id: str) -> list[StoredEvent]:
    """Return the first events of a run without edits: a journey tells nothing of them, and each has a whole spec."""
    found: list[StoredEvent] = []
    after = 0
    for _ in range(0, PER_RUN, AT_ONCE):
        some = house.service.events(after, AT_ONCE, run_id)
        found += [stored for stored in some if not isinstance(stored.event, e.RunEdited)]
        if len(some) < AT_ONCE:
            break
        after = some[-1].seq
    return found


def _of_session(house: House, session_id: str) -> Iterator[str]:
    """Yield the ids of the session's runs among the newest."""
    left, before, more = NEWEST_RUNS, None, True
    while left and more:
        page, more = house.service.runs_page(RunFilter(before=before, limit=left))
        yield from [run.id for run in page if run.spec.labels.get("chat_session_id") == session_id]
        left -= len(page)
        before = page[-1].seq if page else None


def _as_seen(house: House, who: Principal, stored: StoredEvent) -> StoredEvent:
    return replace(stored, event=event_unnamed(stored.event)) if house.only_own(who) else stored


def _slim(run: Run) -> Run:
    """Return what a journey tells of a run: thousands may be known at a time."""
    return replace(run, spec=replace(run.spec, argv=(), env={}))


def _run(house: House, who: Principal, run_id: str, known: dict[str, Run | None]) -> Run | None:
    if run_id not in known:
        try:
            run = house.service.run(run_id)
            known[run_id] = _slim(run) if house.may_see(who, run) else None
        except NotFound:  # retention took it
            known[run_id] = None
    return known[run_id]
