"""Whatever happens, happens as one of these. Frozen, versioned, each with a cause (`by`) and a time (`at`).

The log of events is the truth; rows, views, metrics and the audit trail are projections of it. An event class is never
changed in a way that old bytes could not be read: a new field has a default, a new meaning gets a new VERSION and an
entry in UPCASTS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rota.core import codec
from rota.core.node import Node
from rota.core.policy import Policy
from rota.core.reservation import Reservation
from rota.core.resources import Placement
from rota.core.run import Cause, Dependency, Exit, RunState, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    VERSION: ClassVar[int] = 1
    at: float
    by: str = "rota"  # the principal, or "rota" for the house itself


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent(Event):
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSubmitted(RunEvent):
    seq: int
    user: str
    spec: Spec
    held: bool
    waiting_on: tuple[Dependency, ...]
    expected_s: float
    expected_from: str
    belief: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeld(RunEvent):
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReleased(RunEvent):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReprioritised(RunEvent):
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEdited(RunEvent):
    """Its spec was changed: anything while it waits, names and labels later too, even after its end. With another
    command a run that waits is expected anew."""

    spec: Spec
    expected_s: float | None = None  # None = as before
    expected_from: str = ""
    belief: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArchived(RunEvent):
    """Put out of sight, or back into it."""

    archived: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(RunEvent):
    """The end of a run that has no live attempt: cancelled or refused while it waited."""

    state: RunState
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlanned(RunEvent):
    attempt_id: str
    tick: float
    fence: int
    placement: Placement
    reported: bool = False
    grace_s: float | None = None  # that its supervisor gives it at its limit; None = the spec's own, uncapped


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(RunEvent):
    attempt_id: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(RunEvent):
    attempt_id: str
    cause: Cause
    signal: int
    grace_s: float
    for_run: str = ""
    why: str = ""
    long_grace: bool = False  # see Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded(RunEvent):
    """The attempt is known dead: its GPUs are free from here on. `next`: queued again, or its end."""

    attempt_id: str
    exit: Exit
    gpu_s: float
    next: RunState
    why: str = ""
    not_before: float = 0.0
    counts: bool = False  # against max_retries
    late_s: float = 0.0  # it had ended so long before: nobody looked


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCapped(Event):
    """At most `limit` runs of the group are active at a time; 0 = no cap."""

    group: str
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationMade(Event):
    """GPUs are kept for somebody; which ones is part of it."""

    reservation: Reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationEnded(Event):
    """Its time is over, or somebody gave it up before."""

    reservation_id: str
    why: str
    counted_until: float | None = None  # see Reservation; None = it had not begun, or an older version wrote this


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPut(Event):
    """A small document of a door was written: a sweep, an alert, a token's hash. No decision reads it."""

    kind: str
    id: str
    parent: str  # the run, sweep or session it belongs to; "" = none
    body: str  # JSON text; "" = it is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen(Event):
    """A node appeared or looks different; `node` is all of it."""

    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRemoved(Event):
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrained(Event):
    node_id: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResumed(Event):
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet(Event):
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingPaused(Event):
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingResumed(Event):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStarted(Event):
    epoch: int
    boot_id: str


TYPES: Mapping[str, type[Event]] = {
    cls.__name__: cls
    for cls in (
        RunSubmitted,
        RunHeld,
        RunReleased,
        RunReprioritised,
        RunEdited,
        RunArchived,
        RunEnded,
        AttemptPlanned,
        AttemptStarted,
        StopRequested,
        AttemptEnded,
        GroupCapped,
        ReservationMade,
        ReservationEnded,
        RecordPut,
        NodeSeen,
        NodeRemoved,
        NodeDrained,
        NodeResumed,
        PolicySet,
        SchedulingPaused,
        SchedulingResumed,
        ServerStarted,
    )
}

# (type, version) -> a function from the body of that version to the body of the next one
UPCASTS: Mapping[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}


class UnknownEvent(Exception):
    """The log holds something this version of Rota cannot read."""


def type_of(event: Event) -> str:
    return type(event).__name__


def encode(event: Event) -> dict[str, Any]:
    body: dict[str, Any] = codec.encode(event)
    return body


def decode(kind: str, version: int, body: dict[str, Any]) -> Event:
    cls = TYPES.get(kind)
    if cls is None:
        raise UnknownEvent(f"event type {kind!r} is not known to this version of Rota")
    if version > cls.VERSION:
        raise UnknownEvent(f"event {kind} has version {version}, this Rota reads up to {cls.VERSION}")
    try:
        while version < cls.VERSION:
            body = UPCASTS[kind, version](body)
            version += 1
        return codec.decode(cls, body)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnknownEvent(f"event {kind} v{version} cannot be read: {error!r}") from error
