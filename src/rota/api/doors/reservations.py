"""Reservations: GPUs kept for somebody for a time. The calendar, making one and giving it up."""

from __future__ import annotations

from typing import Annotated, NoReturn

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from rota.api.act import act
from rota.api.answers import Json
from rota.api.asked import MAX_GPUS, NUMBER, Making, Nodes, Tag, Word, for_whom
from rota.api.depends import Caller, DryRun, HouseDep, Key, KnownBy, Strict
from rota.api.dry import IGNORED, marked
from rota.api.errors import AsAsked
from rota.api.faults import faults
from rota.api.render.reservation import Calendar, ReservationShape
from rota.api.router import Router
from rota.app.commands import CancelReservation, Reserve
from rota.app.errors import Invalid, NotFound
from rota.app.reserve import LONGEST_S, MOST_USERS, SHORTEST_S
from rota.core.reservation import Reservation

router = Router("reservations")

LAST = 1e11  # epoch seconds: year 5138
Moment = Annotated[float, Field(ge=0, le=LAST), NUMBER]
# the house says what is wrong with it, in words
Length = Annotated[float, Field(json_schema_extra={"minimum": SHORTEST_S, "maximum": LONGEST_S}), NUMBER]
ReservationId = Annotated[str, Path(max_length=200)]
THEIRS = {"start": "from", "end": "until", "length_s": "for_seconds"}


class NewReservation(Making):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"gpus": 8, "from": 1795078800, "for_seconds": 14400, "name": "demo", "users": ["ben"]},
                {"gpus": 4, "until": 1795093200, "gpu_type": "H100"},
            ]
        }
    )

    gpus: Annotated[int, Field(ge=1, le=MAX_GPUS), NUMBER]
    from_: Moment | None = Field(None, alias="from", description="Epoch seconds, whole ones. Default: now.")
    start: Moment | None = Field(None, description="Another name for `from`, as in the answer.")
    for_seconds: Length | None = Field(None, description="How long; or say `until` when.")
    until: Moment | None = Field(None, description="Epoch seconds; instead of `for_seconds`.")
    end: Moment | None = Field(None, description="Another name for `until`, as in the answer.")
    gpu_type: Word = Field("", description="A part of the GPU's name, such as H100.")
    nodes: Nodes = Field(0, description="Spread evenly over exactly so many nodes.")
    name: Tag = Field("", description="What it is for, in a word.")
    users: Annotated[list[Tag], Field(max_length=MOST_USERS)] = Field(
        default_factory=list, description="Who may use it besides you."
    )
    user: Word | None = Field(None, description="Ignored where the token already says who.")


class MadeReservation(ReservationShape):
    dry_run: bool | None = None
    ignored: list[str] | None = Field(None, description=IGNORED)


class Cancelled(BaseModel):
    message: str
    reservation: ReservationShape
    dry_run: bool | None = None


@router.get(
    "/reservations",
    summary="The calendar: what is reserved, by start",
    responses={200: {"model": list[ReservationShape]}, **faults()},
)
def calendar(
    house: HouseDep,
    who: Caller,
    start: Annotated[float | None, Query(alias="from", ge=0, le=LAST, description="Epoch seconds.")] = None,
    until: Annotated[float | None, Query(ge=0, le=LAST, description="Epoch seconds.")] = None,
) -> Json:
    """Those to come and those of now; with `from` and `until` only what has any part between them. What is over is in
    the events."""
    return Json(Calendar(house, who).all(start, until))


@router.post("/reservations", summary="Reserve GPUs", responses={200: {"model": MadeReservation}, **faults(409)})
async def reserve(
    house: HouseDep,
    who: Caller,
    by: KnownBy,
    asked: NewReservation,
    key: Key = None,
    dry_run: DryRun = False,
    strict: Strict = False,
) -> Json:
    """Which GPUs is settled at once and stays. 409 says from when there would be room instead. A run uses them by
    naming the id in its field `reservation`."""
    ignored = asked.ignored(strict)
    end = _one_of(("until", asked.until), ("end", asked.end))
    if end is not None and asked.for_seconds is not None:
        name = "end" if asked.until is None else "until"
        raise AsAsked(f"for_seconds: says the same as `{name}`; leave one of them out", "for_seconds")
    command = Reserve(
        asked.gpus,
        start=_one_of(("from", asked.from_), ("start", asked.start)),
        end=end,
        length_s=asked.for_seconds,
        gpu_type=asked.gpu_type,
        nodes=asked.nodes,
        name=asked.name,
        users=tuple(asked.users),
        user=for_whom(asked.user, who, by),
        key=key or "",
    )
    try:
        made: Reservation = await act(house, who, command, dry_run)
    except Invalid as error:
        refuse_in_their_words(error, asked)
    return Json(marked(Calendar(house, who).one(made), dry_run, ignored))


def _one_of(first: tuple[str, float | None], second: tuple[str, float | None]) -> float | None:
    """Return the value of a field that has two names; refuse two values that differ."""
    (name, value), (other_name, other) = first, second
    if value is None or other is None or value == other:
        return other if value is None else value
    raise AsAsked(f"{other_name}: is another name for `{name}`, which has another value; leave one out", other_name)


def refuse_in_their_words(error: Invalid, asked: NewReservation) -> NoReturn:
    name = THEIRS.get(error.field or "", error.field)
    if error.field in ("start", "end") and getattr(asked, error.field) is not None:
        name = error.field
    meant = asked.meant_as(name) if name else ""
    raise AsAsked(f"{name}: {error.message.removeprefix(f'{error.field}: ')}{meant}", name) from error


@router.delete(
    "/reservations/{reservation_id}",
    summary="Give a reservation up",
    responses={200: {"model": Cancelled}, **faults(404)},
)
async def cancel(house: HouseDep, who: Caller, reservation_id: ReservationId, dry_run: DryRun = False) -> Json:
    """What runs on its GPUs runs on. Runs that waited for it wait like any other from now on."""
    shown = Calendar(house, who)
    found = next((one for one in shown.view.reservations if one.id == reservation_id), None)
    if found is not None and not shown.may_see(found):
        raise NotFound(f"no reservation {reservation_id[:50]!r}, or it is over", "reservation_id")
    gone: Reservation = await act(house, who, CancelReservation(reservation_id), dry_run)
    answer = {"message": f"Reservation {gone.id} cancelled", "reservation": shown.one(gone)}
    return Json(marked(answer, dry_run))
