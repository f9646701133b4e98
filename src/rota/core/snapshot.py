"""What a decision sees: a read-only view of the state at one moment, good for as long as the version stands."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rota.core.board import Board
from rota.core.fragment import Packer
from rota.core.policy import Packing, Policy
from rota.core.queue import Queue
from rota.core.reservation import Reservation
from rota.core.run import Run
from rota.core.state import State
from rota.core.timeline import Timeline
from rota.core.usage import Load, Usage


@dataclass(frozen=True, slots=True)
class Snapshot:
    now: float
    version: int
    policy: Policy
    paused: bool
    board: Board  # copy before changing
    queue: Queue
    timeline: Timeline
    runs: Mapping[str, Run]
    usage: Mapping[str, Usage]
    load: Mapping[str, Load]
    active: int
    caps: Mapping[str, int]
    groups: Mapping[str, int]  # active runs of each
    stoppable: Collection[str] = ()  # active runs that said they may be stopped
    fillers: int = 0  # of them
    reservations: tuple[Reservation, ...] = ()  # by start
    packer: Packer | None = None  # None = best fit


def snapshot(state: State, now: float) -> Snapshot:
    now = max(now, state.at)
    state.wake(now)
    return Snapshot(
        now=now,
        version=state.version,
        policy=state.policy,
        paused=state.paused,
        board=state.board,
        queue=state.queue,
        timeline=state.timeline,
        runs=state.runs,
        usage=state.usage,
        load=state.load,
        active=state.active,
        caps=state.caps,
        groups=state.groups,
        stoppable=state.stoppable,
        fillers=state.fillers,
        reservations=state.calendar,
        packer=state.packer() if state.policy.packing is Packing.FRAGMENT else None,
    )
