"""The cap of a group: how many runs of a sweep may be active at a time, a standing order to the scheduler."""

from __future__ import annotations

from rota.app.authz import Act, Principal, authorise
from rota.app.commands import CapGroup
from rota.app.desk import Desk
from rota.app.errors import Full, Invalid
from rota.app.problems import must_be_text, must_fit
from rota.core import events as e

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


def _idle(desk: Desk) -> list[str]:
    """Capped groups of which nothing is left to run."""
    busy = {run.spec.group for run in desk.state.runs.values()}
    return [group for group in desk.state.caps if group not in busy]
