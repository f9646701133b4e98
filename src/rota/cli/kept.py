"""Which reservation is meant: by its id, a part of that, or its name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rota.client.model.reservation import Reservation
    from rota.client.sync import Client

WHOLE = re.compile(r"[0-9a-f]{12}")
ADMIN = "admin"  # may use every reservation
HIDDEN = "hidden"  # what others' are called where everybody sees only their own
EMPTY = "is empty; give a reservation's id or name; `rota reserve list` shows them"


def reservation_id(client: Client, text: str) -> str:
    """One that is named so, or whose id begins or ends so. Else as it is: the server says what it thinks of it.
    ValueError where it is empty or stands for several."""
    wanted = text.strip().lower()
    if not wanted:
        raise ValueError(EMPTY)
    if WHOLE.fullmatch(wanted):
        return wanted
    known = [one for one in client.reservations() if one.id != HIDDEN]
    named = [one for one in known if one.name == text]
    parts = [one for one in known if one.id.startswith(wanted) or one.id.endswith(wanted)]
    found = {one.id for one in (*named, *parts)}
    if len(found) > 1:
        found = _meant(client, named, parts)
    if len(found) > 1:
        raise ValueError(f"{text[:80]!r} stands for {len(found)} of them: {', '.join(sorted(found)[:4])}; give more")
    return found.pop() if found else text


def _meant(client: Client, named: Sequence[Reservation], parts: Sequence[Reservation]) -> set[str]:
    """Choose among several as the caller means it: the caller's own, then what the caller may use, then any.

    Anybody may give any name to a reservation, also one that others use already, or that is a part of another's id."""
    who = client.whoami()
    me = who.acts_for or who.name

    def own(one: Reservation) -> bool:
        return one.user == me

    def usable(one: Reservation) -> bool:
        return one.user == me or me in one.users or who.role == ADMIN

    choices = ((named, own), (named, usable), (parts, own), (parts, usable))
    for among, right in choices:
        if found := {one.id for one in among if right(one)}:
            return found
    return {one.id for one in named or parts}
