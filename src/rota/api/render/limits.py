"""Which amounts of a request are limits on this server, and which only count for placement."""

from __future__ import annotations

from typing import Any

from rota.api.asked import Extras
from rota.api.house import House
from rota.core.resources import Request

# field of a request -> controller that bounds it
BOUNDED_BY = {"memory_gb": "memory", "cpus": "cpu"}
LIMIT_OF = {"memory": "memory_gb", "cpu": "cpus", "pids": "processes"}


def enforced(house: House) -> list[str] | None:
    """The limits that hold on this server's machine; None = not known yet."""
    known = house.service.enforced()
    return None if known is None else sorted(LIMIT_OF[each] for each in known if each in LIMIT_OF)


def warnings(house: House, asked: Request | Extras) -> dict[str, Any]:
    """What the submitter asked for and will not get, as a part of the answer; {} when there is nothing to say."""
    wanted = [field for field in BOUNDED_BY if getattr(asked, field)]
    known = house.service.enforced() if wanted else None
    if known is None:
        return {}
    loose = [field for field in wanted if BOUNDED_BY[field] not in known]
    if not loose:
        return {}
    verb = "count" if len(loose) > 1 else "counts"
    text = (
        f"{' and '.join(loose)} {verb} for placement only: this server may not use cgroups to limit a run, "
        "so nothing stops one that takes more (see: rota doctor)"
    )
    return {"warnings": [text]}
