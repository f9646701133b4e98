"""What `decide` answers: plain data, to be committed and then acted on elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from rota.core.resources import Placement


@dataclass(frozen=True, slots=True)
class Start:
    run_id: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class Preempt:
    run_id: str
    attempt_id: str
    for_run: str  # or the reservation that begins


@dataclass(frozen=True, slots=True)
class Reserve:
    """The first that cannot start: nothing that passes it may delay it beyond `at`."""

    run_id: str
    at: float
    placement: Placement


@dataclass(frozen=True, slots=True)
class Plan:
    version: int
    starts: tuple[Start, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    reserve: Reserve | None = None
    examined: int = 0  # runs looked at
    look_again_at: float | None = None  # something will be different then though nothing happens: who is protected, say
