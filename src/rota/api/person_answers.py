"""Keeps a person's answer to an alert or a recommendation from being overwritten by a caller who has not seen it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rota.api.answers import Json
from rota.app.authz import Principal, Role
from rota.app.errors import Changed, Conflict

# Two writers of one turn of the loop: the second is refused before the first one's answer can be read from the store.
TRIES = 3


@dataclass(frozen=True, slots=True)
class PersonAnswer:
    """A person's answer. `by` is empty in records of older versions."""

    word: str
    by: str


def must_have_seen(given: PersonAnswer, who: Principal, seen: str | None, now: str, *, raced: bool) -> None:
    """Refuse an answer of a caller who may not have seen the one that stands.

    A caller has seen the own answer, unless both were sent at the same time (`raced`), and one that the request names
    in `seen` (`now`: what the record shows). An agent never replaces a person's answer.
    """
    first = f"{given.by or 'somebody'} has answered this with {given.word[:500]!r}"
    if who.role is Role.AGENT:
        raise Conflict(f"{first}; an agent does not change a person's answer")
    own = given.by == who.name and not raced
    if (seen is None and not own) or seen not in (None, now):
        raise Conflict(f"{first}; to replace that answer, send it again with `seen`: {now[:500]!r}", "seen")


async def answer(attempt: Callable[[bool], Awaitable[Json]]) -> Json:
    """Call `attempt(raced)`, again where somebody else answered between its look at the record and its write."""
    for number in range(TRIES - 1):
        try:
            return await attempt(number > 0)
        except Changed:
            continue
    return await attempt(True)
