"""Sweeps as they are kept: a document each, whose runs are those of the group by its name."""

from __future__ import annotations

import re

from rota.api.house import House
from rota.app.authz import Principal, Role
from rota.app.errors import Forbidden, NotFound
from rota.app.ports import Record

KIND = "sweep"
SWEEP_ID = re.compile(r"[0-9a-f]{12}")


def may_see(house: House, who: Principal, record: Record) -> bool:
    return not house.settings.private or who.role is Role.ADMIN or owner_of(record) == who.owner


def owner_of(record: Record) -> str:
    return str(record.body.get("user") or record.by)


def sweep_for(
    house: House, who: Principal, sweep_id: str, missing: str = "Sweep not found", *, change: bool = False
) -> Record:
    """A sweep this caller may see, and with `change` may add to."""
    record = house.service.record(KIND, sweep_id) if SWEEP_ID.fullmatch(sweep_id) else None
    if record is None or not may_see(house, who, record):
        raise NotFound(missing.format(sweep_id[:100]), "sweep_id")
    owner = owner_of(record)
    if change and who.role is not Role.ADMIN and owner != who.owner:
        raise Forbidden(f"sweep {record.id} belongs to {owner}; ask {owner} or an admin, or make one of your own")
    return record
