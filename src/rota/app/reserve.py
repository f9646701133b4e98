"""Reserve GPUs, give them up again, and let go what is over. Who may use them is in `reserved`."""

from __future__ import annotations

import hashlib
import json
import math
from datetime import datetime

from rota.app.authz import Act, Principal, Role, authorise
from rota.app.commands import CancelReservation, Reserve
from rota.app.desk import Desk, reason
from rota.app.errors import Conflict, Full, Invalid, NotFound
from rota.app.problems import must_be_text, must_be_visible, must_fit, request_problems
from rota.core import codec
from rota.core import events as e
from rota.core.reason import describe
from rota.core.reservation import COUNTED_S, LEAST_S, NOTICE_S, Reservation, fewer_at
from rota.core.reserving import choose, room_from
from rota.core.resources import Placement, Request
from rota.core.times import told

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
MOST, FOR_ADMINS = 1_000, 100  # reservations in all, and how many of these only admins can make
MOST_OF_ONE = 50
MOST_PAST = 10_000  # that are remembered; they are counted for every new one
MOST_AHEAD_S = 90 * DAY_S
SHORTEST_S, LONGEST_S = 60.0, 30 * DAY_S
JUST_NOW_S = 60.0  # so long ago is now: the caller's clock is another one
MOST_USERS, LONGEST_USER = 100, 100


def reserve(desk: Desk, who: Principal, command: Reserve) -> Reservation:
    must_fit(command, Reserve)
    user = command.user or who.owner
    authorise(who, Act.RESERVE, user)
    _check_texts(user, command)
    digest = _digest(command)
    known = _known(desk, who, command.key, digest)
    if known is not None:
        return known
    start, end = _window(desk.now, command)
    request = Request(command.gpus, command.nodes, gpu_type=command.gpu_type)
    _check_request(desk, request)
    _check_bounds(desk, who, user, request.gpus * max(end - start, LEAST_S))
    if who.role is not Role.ADMIN:
        _check_limit(desk, user, request.gpus, start, end)
    made = Reservation(
        id=_new_id(desk),
        user=user,
        name=command.name,
        start=start,
        end=end,
        placement=_choose(desk, request, start, end),
        made_at=desk.now,
        why=reason(command.why),
        users=tuple(dict.fromkeys(name for name in command.users if name != user)),
    )
    desk.write(e.ReservationMade(at=desk.now, by=who.name, reservation=made))
    if command.key:
        desk.keep_key(who, command.key, digest, made.id)
    return made


def cancel_reservation(desk: Desk, who: Principal, command: CancelReservation) -> Reservation:
    must_fit(command, CancelReservation)
    found = desk.state.reservations.get(command.reservation_id)
    if found is None:
        raise NotFound(f"no reservation {command.reservation_id[:50]!r}, or it is over", "reservation_id")
    authorise(who, Act.CANCEL, found.user)
    why = reason(command.why, f"cancelled by {who.name}")
    own = who.owner == found.user or found.start <= desk.now  # an admin who cancels it early takes it from its owner
    again = any(one.user == found.user and one.was_cheap() for one in desk.state.past_reservations.values())
    until = found.ended(desk.now, again=again) if own else None
    desk.write(e.ReservationEnded(at=desk.now, by=who.name, reservation_id=found.id, why=why, counted_until=until))
    return found


def expire(desk: Desk) -> None:
    """What is over goes; whoever still waits for it then stands in line like everybody else."""
    for one in desk.state.calendar:
        if one.end <= desk.now:
            until = one.ended(desk.now)
            desk.write(
                e.ReservationEnded(at=desk.now, reservation_id=one.id, why="its time is over", counted_until=until)
            )


def said(at: float) -> str:
    """A moment in words that can be read back: the server's local time, with its distance from UTC."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")


# -- what is wrong with it --------------------------------------------------------------------------------------------
def _check_texts(user: str, command: Reserve) -> None:
    must_be_text(user=user, key=command.key, name=command.name, gpu_type=command.gpu_type)
    must_be_visible(user=user, name=command.name)
    if len(command.users) > MOST_USERS:
        raise Invalid(f"users: {len(command.users)} are too many, use at most {MOST_USERS}", "users")
    for name in command.users:
        if len(name) > LONGEST_USER:
            raise Invalid(f"users: a name has {LONGEST_USER} characters at most", "users")
        must_be_text(users=name)
        must_be_visible(users=name)
        if not name.strip():
            raise Invalid("users: one of them is empty; give the names of people", "users")


def _window(now: float, command: Reserve) -> tuple[float, float]:
    """From when to when, in whole seconds: what is said in words can then be asked for."""
    asked = now if command.start is None else command.start
    if not asked <= now + MOST_AHEAD_S:  # nor NaN
        last = f"use a time within the next {MOST_AHEAD_S / DAY_S:.0f} days, up to {said(now + MOST_AHEAD_S)}"
        raise Invalid(f"start: is too far ahead; {last}", "start")
    if asked < now - JUST_NOW_S:
        raise Invalid(f"start: is in the past; now is {now:.0f} ({said(now)}); leave it out to begin now", "start")
    start = math.ceil(asked) if asked > now else math.floor(now)
    if (command.end is None) == (command.length_s is None):
        raise Invalid("length_s: say either for how long or until when", "length_s")
    if command.length_s is None:
        field, end = "end", command.end
    else:
        field, end = "length_s", start + command.length_s if command.length_s <= LONGEST_S else math.inf
    assert end is not None
    if end <= start:
        raise Invalid(
            f"{field}: it would end before it begins, at {said(start)}; use {said(start + SHORTEST_S)} or later", field
        )
    if not start + SHORTEST_S <= end <= start + LONGEST_S:
        asked_s = end - start if command.length_s is None else command.length_s
        # to ten seconds: the clock has moved on since it was reckoned. What is beyond all measure needs no number
        shown = told(float(round(asked_s, -1 if asked_s > LONGEST_S else 3))) if abs(asked_s) < 1e9 else "that"
        raise Invalid(
            f"{field}: {shown} is too {'short' if end < start + SHORTEST_S else 'long'}; a reservation lasts from "
            f"{told(SHORTEST_S)} to {told(LONGEST_S)}",
            field,
        )
    return float(start), float(math.ceil(end))


def _check_request(desk: Desk, request: Request) -> None:
    if request.gpus < 1:
        raise Invalid(f"gpus: {request.gpus} is not a number of GPUs from 1 up", "gpus")
    for field, problem in request_problems(desk, request):
        raise Invalid(f"{field}: {problem}", field)


def _check_bounds(desk: Desk, who: Principal, user: str, gpu_s: float) -> None:
    state = desk.state
    most_now = MOST if who.role is Role.ADMIN else MOST - FOR_ADMINS
    if len(state.reservations) >= most_now:
        raise Full(f"there are {most_now} reservations already; wait until some are over, or cancel some")
    counted = [one for one in state.past_reservations.values() if one.counted_gpu_s(desk.now) > 0]
    if len(counted) >= MOST_PAST:
        raise Full(f"there were {MOST_PAST} reservations in the last {told(COUNTED_S)}; wait until some are older")
    if who.role is Role.ADMIN:
        return
    most = desk.state.policy.max_reserved_gpu_s
    if gpu_s > most:
        raise Invalid(
            f"gpus: that is {gpu_s / HOUR_S:.1f} GPU-hours, and {user} may reserve {most / HOUR_S:g} at a time "
            f"(each counts for {told(LEAST_S)} at least); take fewer GPUs or a shorter time, or ask an admin",
            "gpus",
        )
    if sum(one.user == user for one in state.calendar) >= MOST_OF_ONE:
        raise Full(f"{user} has {MOST_OF_ONE} reservations already; wait until some are over, or cancel some")
    theirs = [one for one in (*counted, *state.calendar) if one.user == user]
    before = sum(one.counted_gpu_s(desk.now) for one in theirs)
    if before + gpu_s > most:
        left = max(0.0, most - before)
        at = said(math.ceil(fewer_at(theirs, desk.now, before + gpu_s - most)))
        raise Conflict(
            f"{user} has reserved {before / HOUR_S:.1f} GPU-hours in the last 7 days and ahead, "
            f"{left / HOUR_S:.1f} of {most / HOUR_S:g} are left; ask for these {gpu_s / HOUR_S:.1f} again at {at}, "
            f"give one up that begins more than {told(NOTICE_S)} from now (`rota reserve cancel`), or ask an admin"
        )


def _check_limit(desk: Desk, user: str, gpus: int, start: float, end: float) -> None:
    """Refuse to keep more GPUs at a time than the user's own runs may hold."""
    most = desk.state.policy.limits_of(user).gpus
    if not most:
        return
    if gpus > most:
        raise Invalid(f"gpus: {user} may hold {most} GPUs at a time; take as many at most, or ask an admin", "gpus")
    theirs = [one for one in desk.state.calendar if one.user == user and one.meets(start, end)]
    moments = [max(start, one.start) for one in theirs]
    kept = max((sum(one.gpus for one in theirs if one.active(at)) for at in moments), default=0)
    if kept + gpus > most:
        raise Conflict(
            f"{user} may hold {most} GPUs at a time, and has reserved {kept} for a part of that time already; "
            "take fewer or another time, or ask an admin"
        )


# -- which GPUs -------------------------------------------------------------------------------------------------------
def _choose(desk: Desk, request: Request, start: float, end: float) -> Placement:
    found = choose(desk.state, request, start, end, desk.now)
    if found is not None:
        return found
    later = room_from(desk.state, request, start, end - start)
    if later is None:
        raise Conflict(f"{describe(request)} would need nodes or GPUs that are out of service now")
    raise Conflict(
        f"other reservations leave no room for {describe(request)} from {said(start)} to {said(end)}; "
        f"there is room for as long from {said(later)} on"
    )


def _new_id(desk: Desk) -> str:
    state = desk.state
    while any((name := desk.new_id()) in known for known in (state.runs, state.reservations, state.past_reservations)):
        pass
    return name


# -- the same request twice -------------------------------------------------------------------------------------------
def _digest(command: Reserve) -> str:
    if not command.key:
        return ""
    text = json.dumps(["reserve", codec.encode(command)], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _known(desk: Desk, who: Principal, key: str, digest: str) -> Reservation | None:
    known = desk.key(who, key) if key else None
    if known is None:
        return None
    if known.digest != digest:
        raise Conflict(f"key {key!r} was used for another request ({known.run_id}); use a new key", "key")
    found = desk.state.reservations.get(known.run_id)
    if found is None:
        raise Conflict(f"key {key!r} made reservation {known.run_id}, which is over; use a new key", "key")
    return found
