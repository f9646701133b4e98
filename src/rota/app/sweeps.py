"""The runs of a sweep together: start them, and cap how many are active at a time, a standing order to the
scheduler."""

from __future__ import annotations

from rota.app.authz import Act, Principal, authorise
from rota.app.commands import CapGroup, StartGroup
from rota.app.desk import Desk
from rota.app.errors import Full, Invalid
from rota.app.problems import must_be_text, must_fit
from rota.core import events as e
from rota.core.run import ENDED, WAITING, RunState

MAX_CAP = 1_000_000
MAX_CAPS = 10_000  # all of them are one row


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
        idle = _idle(desk) if len(caps) >= MAX_CAPS and command.group not in caps else []
        if len(caps) - len(idle) >= MAX_CAPS and command.group not in caps:
            raise Full(f"{MAX_CAPS} sweeps with runs have a cap already; lift one")
        for group in idle:
            desk.write(e.GroupCapped(at=desk.now, group=group, limit=0))
        desk.write(e.GroupCapped(at=desk.now, by=who.name, group=command.group, limit=command.limit))
    return command.limit


def start_group(desk: Desk, who: Principal, command: StartGroup) -> tuple[int, int]:
    """How many of its runs may start now, and how many waited. Everything is checked before anything is written."""
    must_fit(command, StartGroup)
    runs = [run for run in desk.state.runs.values() if run.spec.group == command.group and run.state not in ENDED]
    held = [run for run in runs if run.state is RunState.HELD]
    for run in held:
        authorise(who, Act.RELEASE, run.user)
    limit = cap_group(desk, who, CapGroup(command.group, command.limit, command.owner))
    for run in held:
        desk.write(e.RunReleased(at=desk.now, by=who.name, run_id=run.id))
    waiting = sum(run.state in WAITING for run in runs)
    return min(waiting, max(0, limit - (len(runs) - waiting))) if limit else waiting, waiting


def _idle(desk: Desk) -> list[str]:
    """Capped groups of which nothing is left to run."""
    busy = {run.spec.group for run in desk.state.runs.values()}
    return [group for group in desk.state.caps if group not in busy]
