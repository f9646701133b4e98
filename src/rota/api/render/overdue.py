"""Runs that hold GPUs although they should be gone, as one caller may see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, Field

from rota.api.house import House
from rota.api.render.unnamed import HIDDEN
from rota.app.authz import Principal
from rota.core.overdue import Overdue
from rota.core.run import Run


class OverdueShape(BaseModel):
    run_id: str
    user: str
    since: float = Field(description="Epoch seconds: since when the run should be gone.")
    until: float | None = Field(description="Epoch seconds: it is killed by then. Null: nothing bounds it.")
    text: str = Field(description="The same in words, and what would end the run.")


def without(text: str, run: Run) -> str:
    """Return a text that does not name the run nor its owner."""
    named = text.replace(f"{run.id} of {run.user}", "another run").replace(f"by {run.user} or an admin", "by its owner")
    return named.replace(run.id, "another run")


def hidden_reservations(house: House, who: Principal) -> list[str]:
    """Return the ids of what others have reserved and the caller may not see."""
    if not house.only_own(who):
        return []
    kept = house.service.view().reservations
    return [one.id for one in kept if not (house.may_see_of(who, one.user) or who.owner in one.users)]


def without_ids(text: str, ids: Iterable[str]) -> str:
    for one in ids:
        text = text.replace(one, HIDDEN)
    return text


def overdue_of(house: House, who: Principal, found: Iterable[tuple[Run, Overdue]]) -> list[dict[str, Any]]:
    """Return the fields of `OverdueShape`; a run that the caller may not see stays, without its name."""
    kept = hidden_reservations(house, who)
    answer = []
    for run, late in found:
        mine = house.may_see(who, run)
        answer.append(
            {
                "run_id": late.run_id if mine else HIDDEN,
                "user": late.user if mine else HIDDEN,
                "since": late.since,
                "until": late.until,
                "text": without_ids(late.text if mine else without(late.text, run), kept),
            }
        )
    return answer
