"""Which reservation is meant: by its id, a part of that, or its name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rota.client.model.reservation import Reservation
    from rota.client.sync import Client

WHOLE = re.compile(r"[0-9a-f]{12}")
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
    found = _named(client, [one for one in known if one.name == text]) or {
        one.id for one in known if one.id.startswith(wanted) or one.id.endswith(wanted)
    }
    if len(found) > 1:
        raise ValueError(f"{text[:80]!r} stands for {len(found)} of them: {', '.join(sorted(found)[:4])}; give more")
    return found.pop() if found else text


def _named(client: Client, known: Sequence[Reservation]) -> set[str]:
    """Anybody may give theirs the same name: among several the caller means one that is theirs to use."""
    if len(known) > 1:
        who = client.whoami()
        me = who.acts_for or who.name
        known = [one for one in known if me == one.user or me in one.users] or known
    return {one.id for one in known}
