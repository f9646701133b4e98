"""What a door asks for in its parameters: the house, and who is calling.

All of it is async: FastAPI would call a plain function in a thread, and a request would wait for threads that others
keep busy.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Query, Request

from rota.api.house import House
from rota.app.authz import Principal
from rota.app.errors import NotFound
from rota.core.run import Run


async def house_of(request: Request) -> House:
    house: House = request.app.state.house
    return house


async def caller_of(request: Request) -> Principal:
    """Set by the guard, which lets nobody through whom it does not know."""
    who: Principal = request.scope["rota.who"]
    return who


async def known_by(request: Request) -> str:
    """How the caller is known: token, shared, cookie, socket, open, pid; "" = not at all."""
    by: str = request.scope["rota.by"]
    return by


HouseDep = Annotated[House, Depends(house_of)]
Caller = Annotated[Principal, Depends(caller_of)]
KnownBy = Annotated[str, Depends(known_by)]
DryRun = Annotated[bool, Query(description="Answer as if it were done, and do nothing.")]
Strict = Annotated[
    bool, Query(description="Refuse a body with a field that is not known here, instead of ignoring it.")
]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key", max_length=500, description="The same key from the same caller is the same request."
    ),
]


def seen(house: House, who: Principal, run_id: str) -> Run:
    """A run this caller may see. One that is hidden looks like one that is not there."""
    try:
        run = house.service.run(run_id)
    except NotFound:
        raise NotFound("Run not found", "run_id") from None
    if not house.may_see(who, run):
        raise NotFound("Run not found", "run_id")
    return run
