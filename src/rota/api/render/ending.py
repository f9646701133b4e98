"""What became of a cancel: a run that holds GPUs is not gone when the answer is sent."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from pydantic import BaseModel, Field

from rota.api.dry import is_dry_run
from rota.api.house import House
from rota.app.errors import Invalid
from rota.app.force import was_forced
from rota.app.reserve import said
from rota.core.grace import kill_at
from rota.core.run import Run

Now = Annotated[bool, Query(description="Kill the run and all it forked at once, without a polite signal before.")]
Force = Annotated[
    bool,
    Query(
        description="Admins only. As `now`; where processes of the run have not ended 10 s after SIGKILL, end it on "
        "record and give its GPUs back although these processes may still use them."
    ),
]
Grace = Annotated[
    float | None,
    Query(
        ge=0, le=86400, description="Until SIGKILL; by default the run's own. Above the policy's cap only for admins."
    ),
]

IN_QUERY = ("now", "force", "grace_seconds", "waiting_only")
LONGEST_BODY = 1024  # bytes of one that is looked at; a stop has none


async def only_in_query(request: Request) -> None:
    """Refuse a body with a parameter of a stop: the run would be stopped, but not in the way that was asked for. Any
    other body means nothing, of whatever kind it is."""
    body = await request.body()
    try:
        sent = json.loads(body) if 0 < len(body) <= LONGEST_BODY else None
    except (ValueError, RecursionError):
        return
    for name in sent if isinstance(sent, dict) else ():
        meant = "dry_run" if is_dry_run(name) else name
        if meant in (*IN_QUERY, "dry_run"):
            raise Invalid(f"{name}: write ?{meant}=... after the path, not in the body; nothing was done", name)


LOOK_FIRST = (
    "its GPUs are given out again although processes of the run may still use them: look at nvidia-smi, and keep runs "
    "off the node with `rota nodes drain` until they are gone"
)


OnlyInQuery = Depends(only_in_query)


class Ending(BaseModel):
    stopping: bool = Field(description="The run still holds its GPUs until its processes are gone.")
    kill_at: float | None = Field(description="Epoch seconds: SIGKILL is sent then at the latest.")
    note: str = Field(description="The same in words, and what would end the run sooner.")


def asked_grace(now: bool, grace_seconds: float | None = None) -> float | None:
    """Return the grace that a caller asks for; None = the run's own."""
    if now and grace_seconds:
        raise Invalid("now: kills at once, and grace_seconds asks for time; give one of the two", "now")
    return 0.0 if now else grace_seconds


def ending_of(house: House, run: Run) -> dict[str, Any]:
    """Return the fields of `Ending` for a run that was just cancelled."""
    attempt = run.attempt
    if attempt is None or attempt.stop is None:
        return {"stopping": False, "kill_at": None, "note": LOOK_FIRST if was_forced(run) else ""}
    killed_at = kill_at(house.service.policy(), run)
    if killed_at is None or killed_at <= house.service.now():
        note = "is being killed with all it forked; its GPUs are free when its processes are gone"
    else:
        note = (
            f"was asked to end and is killed at {said(killed_at)} at the latest; to end it at once: "
            f"rota cancel --now {run.id}, or POST /runs/{run.id}/stop?now=true"
        )
    return {"stopping": True, "kill_at": killed_at, "note": note}
