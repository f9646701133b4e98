"""May this run use that reservation?"""

from __future__ import annotations

from rota.app.authz import Principal, Role
from rota.app.desk import Desk
from rota.app.errors import Forbidden, Invalid
from rota.core.reason import describe
from rota.core.reservation import Reservation
from rota.core.reserving import could_hold
from rota.core.run import Spec


def must_be_usable(desk: Desk, who: Principal, user: str, spec: Spec, *, blind: bool = False) -> None:
    """A run may name only what is there, still to come or going on, and kept for the person it is for. `blind`: others'
    reservations are hidden from the caller, and look like none."""
    found = desk.state.reservations.get(spec.reservation)
    mine = found is not None and (who.role is Role.ADMIN or found.serves(user))
    if found is None or found.end <= desk.now or (blind and not mine):
        raise Invalid(
            f"reservation: there is none called {spec.reservation[:50]!r}, or it is over; `rota reserve list` shows "
            "what there is",
            "reservation",
        )
    if not mine:
        raise Forbidden(
            f"reservation: {found.id} is kept for {_names(found)}, not for {user}; ask {found.user} or an admin"
        )
    if not could_hold(desk.state.board.layout, found, spec.request):
        raise Invalid(
            f"gpus: {describe(spec.request)} do not fit into reservation {found.id}, which keeps {_where(found)}; "
            "ask for less, or leave the reservation out",
            "gpus",
        )


def _names(reservation: Reservation) -> str:
    return ", ".join((reservation.user, *reservation.users[:10]))


def _where(reservation: Reservation) -> str:
    shown = [f"{part.gpus.bit_count()} on {part.node}" for part in reservation.placement[:5]]
    return ", ".join(shown) + (", ..." if len(reservation.placement) > len(shown) else "")
