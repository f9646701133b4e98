"""Sweeps as they are kept: a document each, whose runs are those of the group by its name."""

from __future__ import annotations

import re

from rota.api.house import House
from rota.api.shelf import owner_of
from rota.app.authz import Principal, Role
from rota.app.errors import Forbidden, NotFound
from rota.app.ports import Record

KIND = "sweep"
SWEEP_ID = re.compile(r"[0-9a-f]{12}")


def sweep_for(
    house: House, who: Principal, sweep_id: str, missing: str = "Sweep not found", *, change: bool = False
) -> Record:
    """A sweep this caller may see, and with `change` may add to."""
    record = house.service.record(KIND, sweep_id) if SWEEP_ID.fullmatch(sweep_id) else None
    if record is None or not house.may_see_of(who, owner_of(record)):
        raise NotFound(missing.format(sweep_id[:100]), "sweep_id")
    owner = owner_of(record)
    if change and not _may_add(who, owner):
        raise Forbidden(f"sweep {record.id} belongs to {owner}; ask {owner} or an admin, or make one of your own")
    return record


def may_add(house: House, who: Principal, group: str) -> bool:
    """Return whether the caller may add to this group of runs. One that is no sweep, or no more, is nobody's."""
    record = house.service.record(KIND, group) if SWEEP_ID.fullmatch(group) else None
    return record is None or _may_add(who, owner_of(record))


def _may_add(who: Principal, owner: str) -> bool:
    return who.role is Role.ADMIN or owner == who.owner
