"""Reservations as callers see them, and what a run that names one should know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rota.api.house import House
from rota.api.render.overdue import OverdueShape, overdue_of
from rota.api.render.unnamed import HIDDEN
from rota.api.render.words import gpu_names
from rota.app.authz import Principal
from rota.app.reserve import said
from rota.app.views import View
from rota.core.grace import longest_s
from rota.core.node import Node
from rota.core.overdue import Overdue, overdue
from rota.core.protect import from_reservation_until, gone_for_reservation_by
from rota.core.reservation import Reservation
from rota.core.resources import Placement, Slice, bits
from rota.core.run import Run

MOST_RUNS = 100  # named in one answer


class ReservationShape(BaseModel):
    """Times are epoch seconds of the server."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "6af9a5ed5e05",
                    "name": "demo",
                    "user": "ann",
                    "users": ["ben"],
                    "state": "upcoming",
                    "start": 1795078800.0,
                    "end": 1795093200.0,
                    "made_at": 1794990000.0,
                    "gpus": 2,
                    "nodes": {"node1": [0, 1]},
                    "out_of_service": [],
                    "ready_at": 1795078800.0,
                    "blocked_by": [],
                    "overdue": [],
                    "never_ready": 0,
                    "runs": [],
                    "run_count": 0,
                    "why": "",
                }
            ]
        }
    )

    id: str
    name: str
    user: str
    users: list[str] = Field(description="Who may use it besides its owner.")
    state: Literal["upcoming", "active"]
    start: float
    end: float
    made_at: float
    gpus: int
    nodes: dict[str, list[int]] = Field(description="The numbers of its GPUs on each node.")
    out_of_service: list[str] = Field(description="Those of its GPUs that could not be given out now.")
    ready_at: float = Field(description="When all of its GPUs are expected to be free: its start, or later.")
    blocked_by: list[str] = Field(description="Runs expected to hold some of them longer than that.")
    overdue: list[OverdueShape] = Field(description="Those of them that should be gone already.")
    never_ready: int = Field(description="How many of its GPUs are expected to be held by others until it is over.")
    runs: list[str] = Field(description=f"Live runs that use it, at most {MOST_RUNS}.")
    run_count: int
    why: str


class Calendar:
    """One moment of what is reserved, as one caller may see it."""

    def __init__(self, house: House, who: Principal) -> None:
        self._house, self._who = house, who
        self._now = house.service.now()
        self.view: View = house.service.view()
        self._users: dict[str, list[Run]] = {}  # reservation -> live runs that use it
        if self.view.reservations:
            for run in self.view.runs.values():
                if run.spec.reservation:
                    self._users.setdefault(run.spec.reservation, []).append(run)

    def all(self, start: float | None, end: float | None) -> list[dict[str, Any]]:
        """Those of which anything lies between the two."""
        begin, until = 0.0 if start is None else start, float("inf") if end is None else end
        return [self.one(found) for found in self.view.reservations if found.meets(begin, until)]

    def one(self, found: Reservation) -> dict[str, Any]:
        mine = self.may_see(found)
        blockers = list(self._blockers(found))
        runs = [run for run in self._users.get(found.id, ()) if self._house.may_see(self._who, run)]
        return {
            "id": found.id if mine else HIDDEN,
            "name": found.name if mine else HIDDEN,
            "user": found.user if mine else HIDDEN,
            "users": list(found.users) if mine else [],
            "state": "active" if found.start <= self._now else "upcoming",
            "start": found.start,
            "end": found.end,
            "made_at": found.made_at,
            "gpus": found.gpus,
            "nodes": {part.node: list(bits(part.gpus)) for part in found.placement},
            "out_of_service": gpu_names(_unfit(found.placement, self.view.nodes)),
            "ready_at": max([found.start, *(end for end, _ in blockers)]),
            "blocked_by": [run.id for _, run in blockers if self._house.may_see(self._who, run)][:MOST_RUNS],
            "overdue": overdue_of(self._house, self._who, self._overdue(found, blockers))[:MOST_RUNS],
            "never_ready": self._never_ready(found, [run for end, run in blockers if end >= found.end]),
            "runs": [run.id for run in runs[:MOST_RUNS]],
            "run_count": len(runs),
            "why": found.why if mine else "",
        }

    def may_see(self, found: Reservation) -> bool:
        return self._house.may_see_of(self._who, found.user) or self._who.owner in found.users

    def _never_ready(self, found: Reservation, late: list[Run]) -> int:
        ids, holders = {run.id for run in late}, self.view.holders() if late else {}
        return sum(name in holders and holders[name].id in ids for name in _gpus(found.placement))

    def _blockers(self, found: Reservation) -> Iterator[tuple[float, Run]]:
        """Yield the runs of others that hold some of its GPUs when it begins, and until when each is expected to. Once
        it has begun that is every such run, also one that is late or is being preempted."""
        holders = self.view.holders()
        held = {run.id: run for name in _gpus(found.placement) if (run := holders.get(name)) is not None}
        for run in held.values():
            if run.spec.reservation == found.id or run.attempt is None:
                continue
            late = overdue(self.view.policy, run, self._now)
            end = run.attempt.expected_end
            stays = not run.spec.stoppable  # else it is asked to end at the start, or when it has had its time
            if late is not None:
                end, stays = found.end if late.until is None else late.until, True
            elif not stays:
                end = min(end, gone_for_reservation_by(self.view.policy, run, found))
                stays = from_reservation_until(self.view.policy, run, found.made_at) > found.start
            if found.start <= self._now:
                yield max(end, self._now), run
            elif end > found.start and stays:
                yield end, run

    def _overdue(self, found: Reservation, blockers: list[tuple[float, Run]]) -> Iterator[tuple[Run, Overdue]]:
        for _, run in blockers:
            late = overdue(self.view.policy, run, self._now, found)
            if late is not None:
                yield run, late


def note_of(house: House, run: Run) -> str:
    """What the submitter of a run that uses a reservation should know; "" = nothing."""
    found = next((one for one in house.service.reservations() if one.id == run.spec.reservation), None)
    if found is None or run.attempt is not None:
        return ""
    if max(house.service.now(), found.start) + longest_s(house.service.policy(), run) <= found.end:
        return ""
    return (
        f"may run on after reservation {found.id} is over at {said(found.end)}; it keeps its GPUs then, "
        "and waits where that would delay another run: with a time limit that ends before, it does not"
    )


def _gpus(placement: Placement) -> Iterator[tuple[str, int]]:
    return ((part.node, index) for part in placement for index in bits(part.gpus))


def _unfit(placement: Placement, nodes: Mapping[str, Node]) -> Placement:
    usable = {name: node.usable for name, node in nodes.items()}
    return tuple(Slice(part.node, part.gpus & ~usable.get(part.node, 0)) for part in placement)
