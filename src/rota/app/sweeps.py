"""The runs of a sweep together: start them, cancel them, and cap how many are active at a time, a standing order to
the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from rota.app.authz import Act, Principal, Role, authorise, may
from rota.app.commands import Cancel, CancelGroup, CapGroup, StartGroup
from rota.app.control import cancel
from rota.app.desk import Desk
from rota.app.errors import Forbidden, Full, Invalid, Refused
from rota.app.problems import must_be_text, must_fit
from rota.core import events as e
from rota.core.run import ACTIVE, ENDED, WAITING, Run, RunState

MAX_CAP = 1_000_000
MAX_CAPS = 10_000  # all of them are one row
MAX_OF_ONE = 1_000  # of one person with all agents, so that no one has all of them
FOR_ADMINS = 1_000  # of all, which nobody else gets
LIFT = "lift one with POST /sweeps/ID/start?parallel=0 or `rota release --parallel 0 ID`, or wait until one is over"


def cap_group(desk: Desk, who: Principal, command: CapGroup) -> int:
    must_fit(command, CapGroup)
    authorise(who, Act.CAP, command.owner or who.owner)
    must_be_text(group=command.group)
    if not command.group:
        raise Invalid("group: is empty; name the sweep", "group")
    if not 0 <= command.limit <= MAX_CAP:
        raise Invalid(f"limit: {command.limit} is not from 0 (no cap) to {MAX_CAP}", "limit")
    caps = desk.state.caps
    if caps.get(command.group, 0) != command.limit:
        if command.group not in caps:
            _make_room(desk, who, command.owner or who.owner)
        desk.write(e.GroupCapped(at=desk.now, by=who.name, group=command.group, limit=command.limit))
    return command.limit


def start_group(desk: Desk, who: Principal, command: StartGroup) -> tuple[int, int]:
    """How many of its runs may start now, and how many waited. Everything is checked before anything is written."""
    must_fit(command, StartGroup)
    runs = [run for run in desk.state.runs.values() if run.spec.group == command.group and run.state not in ENDED]
    held = [run for run in runs if run.state is RunState.HELD]
    theirs = sum(not may(who, Act.RELEASE, run.user) for run in held)
    if theirs:  # an admin put them there; their owners may be hidden
        what = f"{theirs} held run{'s'[: theirs != 1]} of the sweep, which belong{'s'[: theirs == 1]} to others"
        raise Forbidden(f"{who.name} may not release {what}; ask an admin")
    limit = cap_group(desk, who, CapGroup(command.group, command.limit, command.owner))
    for run in held:
        desk.write(e.RunReleased(at=desk.now, by=who.name, run_id=run.id))
    waiting = sum(run.state in WAITING for run in runs)
    return min(waiting, max(0, limit - (len(runs) - waiting))) if limit else waiting, waiting


@dataclass(frozen=True, slots=True)
class GroupCancelled:
    """What became of the runs of a group."""

    cancelled: int  # ended at once: they waited, or are carried elsewhere
    stopping: tuple[Run, ...]  # hold their GPUs until their processes are gone
    refused: tuple[tuple[Run, Refused], ...]  # left alone, and why


def cancel_group(desk: Desk, who: Principal, command: CancelGroup) -> GroupCancelled:
    """End the live runs of a group in one batch, so that none starts in the place of another."""
    must_fit(command, CancelGroup)
    runs = [run for run in desk.state.runs.values() if run.spec.group == command.group and run.state not in ENDED]
    if command.waiting_only:
        runs = [run for run in runs if run.state in WAITING]
    ended = 0
    stopping: list[Run] = []
    refused: list[tuple[Run, Refused]] = []
    for run in runs:
        try:
            # one that depends on another of the group may have ended with that
            gone = desk.state.runs[run.id].state in ENDED
            left = None if gone else cancel(desk, who, Cancel(run.id, command.why, command.grace_s))
        except Refused as refusal:
            refused.append((run, refusal))
            continue
        if left is not None and left.state in ACTIVE:
            stopping.append(left)
        else:
            ended += 1
    return GroupCancelled(ended, tuple(stopping), tuple(refused))


def _make_room(desk: Desk, who: Principal, owner: str) -> None:
    """Make room for one more cap of this owner; raises Full. Only caps of groups with runs that have not ended count,
    each for the owner of these runs. The others are lifted where there is no room left for them."""
    caps = desk.state.caps
    most = MAX_CAPS if who.role is Role.ADMIN else MAX_CAPS - FOR_ADMINS
    if len(caps) < min(most, MAX_OF_ONE):
        return
    live = [run for run in desk.state.runs.values() if run.spec.group in caps and run.state not in ENDED]
    busy, own = {run.spec.group for run in live}, {run.spec.group for run in live if run.user == owner}
    if who.role is not Role.ADMIN and len(own) >= MAX_OF_ONE:
        raise Full(f"{len(own)} sweeps of {owner} with runs have a cap, the limit is {MAX_OF_ONE} a person; {LIFT}")
    if len(busy) >= most:
        raise Full(f"{len(busy)} sweeps with runs have a cap already, the limit is {most}; {LIFT}")
    if len(caps) >= MAX_CAPS:
        for group in [group for group in caps if group not in busy]:
            desk.write(e.GroupCapped(at=desk.now, group=group, limit=0))
