"""The doors' documents: the same key makes one, also when it comes several times at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rota.api import shelf
from rota.api.house import House
from rota.api.lookups import look_up
from rota.api.shelf import Shelf
from rota.app.authz import Principal, Role
from rota.app.commands import Draft
from rota.app.errors import Conflict
from rota.app.ports import Record

ANN = Principal("ann", Role.USER)
DRAFT = Draft("session", "s1", "")


async def add(house: House, asked: str = "a", key: str | None = "k") -> Record:
    return await Shelf(house, ANN).add(DRAFT, {"name": asked}, {"name": asked}, key, dry_run=False)


def test_one_key_several_times_at_once_makes_one_document(house: House) -> None:
    async def all_at_once() -> list[Record]:
        return await asyncio.gather(*(add(house) for _ in range(6)))

    made = asyncio.run(all_at_once())
    assert {(record.id, record.seq) for record in made} == {("s1", made[0].seq)}


@pytest.mark.parametrize("hidden", [1, 2])
def test_a_document_that_cannot_be_read_yet_is_looked_for_again(
    house: House, monkeypatch: pytest.MonkeyPatch, hidden: int
) -> None:
    """The other request of the same key has been carried out, and is not in the store yet."""
    made = asyncio.run(add(house))
    looks: list[str] = []

    async def look(house: House, who: Principal, work: Any, *args: Any, **named: Any) -> Any:
        looks.append(who.name)
        return None if len(looks) <= hidden else await look_up(house, who, work, *args, **named)

    monkeypatch.setattr(shelf, "look_up", look)
    assert asyncio.run(add(house)) == made
    assert len(looks) == hidden + 1
    looks.clear()
    with pytest.raises(Conflict, match="was used for another request"):
        asyncio.run(add(house, "b"))


def test_without_a_key_a_name_that_is_there_is_refused_at_once(house: House) -> None:
    asyncio.run(add(house))
    with pytest.raises(Conflict, match="session s1 is there already"):
        asyncio.run(add(house, key=None))
