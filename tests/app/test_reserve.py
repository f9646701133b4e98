"""Reservations: who may make which, for how long, what is refused and in which words, and when they are over."""

from __future__ import annotations

from typing import Any

import pytest

from rota.adapters.clock import SystemClock
from rota.app.authz import Principal, Role
from rota.app.commands import CancelReservation, Drain, Rerun, Reserve, Submit
from rota.app.errors import Conflict, Forbidden, Full, Invalid, NotFound
from rota.app.reserve import FOR_ADMINS, MOST, MOST_OF_ONE, expire, said
from rota.core import events as e
from rota.core.policy import Limits
from rota.core.reservation import Reservation
from rota.core.resources import Request
from rota.core.run import RunState
from tests.app.conftest import Build
from tests.app.house import ANN, BOB, PATIENCE_S, ROOT, House, until, with_policy
from tests.unit.core.kit import where

HOUR, DAY = 3600.0, 86400.0
AGENT, EVE = Principal("bot", Role.AGENT, acts_for="ann"), Principal("eve", Role.VIEWER)
NAN, INF = float("nan"), float("inf")


class Hurried(SystemClock):
    """Time that can be let pass."""

    ahead_s = 0.0

    def tick(self) -> float:
        return super().tick() + self.ahead_s


def reserve(house: House, gpus: int = 2, who: Principal = ANN, *, in_s: float = HOUR, **more: Any) -> Reservation:
    more.setdefault("length_s", None if "end" in more else HOUR)
    made: Reservation = house.do(Reserve(gpus, start=house.rota.now() + in_s, **more), who)
    return made


def live(house: House) -> list[str]:
    return [one.id for one in house.rota.view().reservations]


# -- making one -------------------------------------------------------------------------------------------------------
def test_it_is_made_written_down_and_there_after_a_restart(house: House) -> None:
    now = house.rota.now()
    made = reserve(house, 4, in_s=DAY, name="demo", users=("bob", "ann", "bob", "cid"), why="a talk")
    assert where(made.placement) == {"node1": [0, 1, 2, 3]}
    assert (made.user, made.name, made.why, made.users) == ("ann", "demo", "a talk", ("bob", "cid"))
    assert (made.start % 1, made.end - made.start) == (0.0, HOUR)
    assert now + DAY <= made.start <= house.rota.now() + DAY + 1
    (event,) = house.events(e.ReservationMade)
    assert (event.by, event.reservation) == ("ann", made)
    house.reopen()
    assert house.rota.view().reservations == house.rota.reservations() == (made,)
    assert house.rota.ask(lambda state, at: state.reservations) == {made.id: made}


def test_without_a_start_it_begins_at_once(house: House) -> None:
    made: Reservation = house.do(Reserve(1, length_s=90.0), ANN)
    assert made.active(house.rota.now())
    assert made.end - made.start == 90.0
    until: Reservation = house.do(Reserve(1, end=made.end + 0.5), ANN)
    assert until.end == made.end + 1, "whole seconds"
    before = house.rota.now()
    just_now = reserve(house, in_s=-30.0)
    assert just_now.start > before - 2, "what the caller's clock calls now"


def test_an_agent_reserves_for_its_person_and_an_admin_for_anybody(house: House) -> None:
    assert reserve(house, who=AGENT).user == "ann"
    assert reserve(house, who=ROOT, user="bob").user == "bob"
    with pytest.raises(Forbidden):
        reserve(house, who=ANN, user="bob")
    with pytest.raises(Forbidden):
        reserve(house, who=EVE)


def test_where_there_is_no_room_it_says_when_there_is(house: House) -> None:
    first = reserve(house, 8, who=ROOT, length_s=HOUR)
    with pytest.raises(Conflict) as refusal:
        reserve(house, 1, in_s=HOUR + 600)
    words = str(refusal.value)
    assert "other reservations leave no room for 1 GPU from" in words
    assert f"there is room for as long from {said(first.end)} on" in words
    then: Reservation = house.do(Reserve(1, start=first.end, length_s=HOUR), ANN)
    assert then.start == first.end, "as it was told"
    assert len(live(house)) == 2


def test_what_is_out_of_service_is_no_matter_of_time(house: House) -> None:
    house.do(Drain("node1"))
    with pytest.raises(Conflict, match="out of service"):
        reserve(house, 8, who=ROOT)
    assert where(reserve(house, 4).placement) == {"node2": [0, 1, 2, 3]}


def test_the_same_key_is_the_same_reservation(house: House) -> None:
    asked: dict[str, Any] = {"start": house.rota.now() + HOUR, "length_s": HOUR, "key": "k1"}
    first = house.do(Reserve(2, **asked), ANN)
    assert house.do(Reserve(2, **asked), ANN) == first
    assert house.do(Reserve(2, **asked), BOB) != first, "somebody else's key is another"
    with pytest.raises(Conflict, match="another request"):
        house.do(Reserve(3, **asked), ANN)
    with pytest.raises(Conflict, match="another request"):
        house.do(Submit(house.spec("true"), key="k1"), ANN)
    house.reopen()
    assert house.do(Reserve(2, **asked), ANN) == first
    house.do(CancelReservation(first.id), ANN)
    with pytest.raises(Conflict, match="which is over"):
        house.do(Reserve(2, **asked), ANN)
    assert len(live(house)) == 1


def test_a_dry_run_answers_the_same_and_leaves_nothing(house: House) -> None:
    version = house.rota.view().version
    start = house.rota.now() + HOUR
    tried = house.rota.try_out(ANN, Reserve(4, start=start, length_s=HOUR, key="k"))
    assert (tried.gpus, tried.user) == (4, "ann")
    made = house.do(Reserve(4, start=start, length_s=HOUR), ANN)
    assert made.placement == tried.placement
    gone = house.rota.try_out(ANN, CancelReservation(made.id))
    assert gone == made and live(house) == [made.id]
    assert house.rota.view().version == version + 1


# -- bounds -----------------------------------------------------------------------------------------------------------
def test_a_person_has_a_bound_and_an_admin_has_none(house: House) -> None:
    with pytest.raises(Invalid, match=r"66\.0 GPU-hours, and ann may reserve 64 at a time") as refusal:
        reserve(house, 6, length_s=11 * HOUR)
    assert refusal.value.field == "gpus"
    first = reserve(house, 4, in_s=4 * DAY, length_s=10 * HOUR)
    with pytest.raises(Conflict, match=r"ann has reserved 40\.0 GPU-hours in the last 7 days and ahead"):
        reserve(house, 4, in_s=DAY, length_s=7 * HOUR)
    reserve(house, 4, in_s=DAY, length_s=6 * HOUR)
    reserve(house, 4, who=BOB, in_s=2 * DAY, length_s=16 * HOUR)
    house.do(CancelReservation(first.id), ANN)
    reserve(house, 4, in_s=3 * DAY, length_s=10 * HOUR)
    reserve(house, 8, who=ROOT, in_s=10 * DAY, length_s=30 * DAY)
    with_policy(house, max_reserved_gpu_s=0.0)
    with pytest.raises(Invalid, match="bob may reserve 0 at a time"):
        reserve(house, 1, who=BOB, in_s=5 * DAY)


def test_nobody_keeps_more_at_a_time_than_their_runs_may_hold(house: House) -> None:
    with_policy(house, limits=Limits(gpus=4), user_limits={"bob": Limits()})
    for who in (ANN, AGENT):
        with pytest.raises(Invalid, match="ann may hold 4 GPUs at a time") as refusal:
            reserve(house, 5, who)
        assert refusal.value.field == "gpus"
    first = reserve(house, 3)
    reserve(house, 1, in_s=HOUR / 2)
    with pytest.raises(Conflict, match="ann may hold 4 GPUs at a time, and has reserved 4 for a part of that time"):
        reserve(house, 1, in_s=0.0, length_s=3 * HOUR)
    house.do(Reserve(4, start=first.end, length_s=HOUR), ANN)
    reserve(house, 5, BOB, in_s=DAY)
    assert reserve(house, 8, ROOT, user="ann", in_s=2 * DAY).gpus == 8


def test_runs_of_a_reservation_count_against_the_limit_of_their_user(house: House) -> None:
    with_policy(house, limits=Limits(gpus=2))
    kept: Reservation = house.do(Reserve(4, length_s=HOUR, user="ann"), ROOT)
    with pytest.raises(Invalid, match="ann may hold 2 GPUs at a time"):
        house.submit("true", 3, reservation=kept.id)
    house.running(2, reservation=kept.id)
    second = house.submit("true", 2, reservation=kept.id)
    assert "user_gpus" in [reason.code for reason in house.rota.explain(second).reasons]


def hurried(build: Build) -> tuple[House, Hurried]:
    house, clock = build(), Hurried()
    house.clock = lambda: clock
    house.open()
    return house, clock


def pass_time(house: House, clock: Hurried, seconds: float) -> None:
    clock.ahead_s += seconds
    house.loop.call(expire).result(PATIENCE_S)


def test_what_was_reserved_in_the_last_seven_days_counts_used_or_not(build: Build) -> None:
    house, clock = hurried(build)
    house.do(Reserve(4, length_s=15 * HOUR), ANN)
    pass_time(house, clock, 15 * HOUR + 1)
    assert live(house) == []
    house.reopen()
    with pytest.raises(Conflict) as refusal:
        reserve(house, 4, who=AGENT, in_s=DAY, length_s=2 * HOUR)
    words = str(refusal.value)
    assert "ann has reserved 60.0 GPU-hours in the last 7 days and ahead, 4.0 of 64 are left" in words
    assert "ask for these 8.0 again at " in words
    reserve(house, 4, who=BOB, in_s=DAY, length_s=2 * HOUR)
    pass_time(house, clock, 7 * DAY - 15 * HOUR + 100.0)
    with pytest.raises(Conflict):
        reserve(house, 4, in_s=DAY, length_s=2 * HOUR)
    pass_time(house, clock, HOUR)
    reserve(house, 4, in_s=DAY, length_s=2 * HOUR)


def test_nobody_keeps_all_gpus_for_ever_by_reserving_on_and_on(build: Build) -> None:
    """The next one is asked for as soon as there is any room for it."""
    house, clock = hurried(build)
    kept_s = 0.0
    for _ in range(2 * 24):
        while True:
            start = max([house.rota.now(), *(one.end for one in house.rota.reservations())])
            try:
                kept_s += 8 * 3600.0 if house.do(Reserve(8, start=start, length_s=HOUR), AGENT) else 0.0
            except Conflict:
                break
        pass_time(house, clock, HOUR)
    assert kept_s == 64 * HOUR


def test_one_that_is_given_up_counts_from_its_start_for_a_quarter_of_an_hour_at_least(build: Build) -> None:
    house, clock = hurried(build)
    with_policy(house, max_reserved_gpu_s=6 * HOUR)
    house.do(CancelReservation(reserve(house, 4, in_s=DAY + HOUR).id), ANN)  # nobody lost anything
    for _ in range(10):
        house.do(CancelReservation(reserve(house, 4, in_s=8 * DAY).id), ANN)  # nor here, however often
        house.do(CancelReservation(reserve(house, 4, in_s=100.0).id), ROOT)  # its owner did not give it up
    for _ in range(3):
        house.do(CancelReservation(house.do(Reserve(4, length_s=HOUR), ANN).id), ANN)
    with pytest.raises(Conflict, match=r"reserved 3\.0 GPU-hours in the last 7 days and ahead, 3\.0 of 6 are left"):
        house.do(Reserve(4, length_s=HOUR), ANN)
    house.do(Reserve(4, length_s=60.0), ANN)
    house.do(Reserve(4, length_s=HOUR / 2), ANN)
    with pytest.raises(Conflict, match=r"0\.0 of 6 are left"):
        house.do(Reserve(1, length_s=60.0), ANN)
    pass_time(house, clock, 8 * DAY + 2 * HOUR)
    house.do(Reserve(4, length_s=HOUR), ANN)
    past = house.rota.ask(lambda state, at: state.past_reservations)
    assert past == {}, "what is older than that is forgotten"
    house.reopen()
    assert house.rota.ask(lambda state, at: state.past_reservations) == {}


def test_a_mistake_is_free_once_also_for_who_has_used_a_reservation(build: Build) -> None:
    house, clock = hurried(build)
    used = house.do(Reserve(4, length_s=HOUR), ANN)
    pass_time(house, clock, HOUR + 60.0)
    until(lambda: used.id not in live(house), "it is over")

    def costs() -> float:
        one = reserve(house, 4, in_s=2 * DAY)
        house.do(CancelReservation(one.id), ANN)
        past: Reservation = house.rota.ask(lambda state, at: state.past_reservations[one.id])
        return past.counted_gpu_s(house.rota.now())

    assert costs() == 0
    assert costs() == 4 * HOUR / 4, "made and given up again and again, it would keep others off"


def test_one_that_is_given_up_shortly_before_its_start_counts_too(build: Build) -> None:
    """It kept runs off its GPUs that could not be done before it: a chain of such would do so for ever."""
    house, clock = hurried(build)
    with_policy(house, max_reserved_gpu_s=6 * HOUR)
    given_up = 0
    with pytest.raises(Conflict, match=r"reserved 6\.0 GPU-hours in the last 7 days and ahead, 0\.0 of 6 are left"):
        for _ in range(10):
            one = house.do(Reserve(4, start=house.rota.now() + 90.0, length_s=60.0), ANN)
            pass_time(house, clock, 80.0)
            house.do(CancelReservation(one.id), ANN)
            given_up += 1
    assert given_up == 6
    pass_time(house, clock, 8 * DAY)
    long = house.do(Reserve(4, start=house.rota.now() + 3 * HOUR, length_s=HOUR), ANN)
    pass_time(house, clock, HOUR / 2)
    house.do(CancelReservation(long.id), ANN)
    past = house.rota.ask(lambda state, at: list(state.past_reservations.values()))
    counted = [one.counted_gpu_s(house.rota.now()) for one in past]
    assert counted == pytest.approx([4 * HOUR / 2], rel=0.05), "as long as it stood"


@pytest.mark.parametrize(
    ("ahead_s", "stands_s", "at_most"),
    [
        # given up more than a day before its start each time: runs of more than a day would never start
        (DAY + 100.0, 60.0, 35),
        (2 * DAY, DAY - 60.0, 6),
        (7 * DAY, 6 * DAY - 60.0, 2),
        # and within the last day
        (DAY - 60.0, DAY - 120.0, 6),
    ],
)
def test_nobody_keeps_long_runs_off_for_ever_by_giving_up_and_reserving_again(
    build: Build, ahead_s: float, stands_s: float, at_most: int
) -> None:
    house, clock = hurried(build)
    rounds = 0
    with pytest.raises(Conflict, match=r"in the last 7 days and ahead"):
        for _ in range(100):
            one = house.do(Reserve(8, start=house.rota.now() + ahead_s, length_s=60.0), ANN)
            pass_time(house, clock, stands_s)
            house.do(CancelReservation(one.id), ANN)
            rounds += 1
    assert rounds <= at_most
    house.reopen()
    with pytest.raises(Conflict, match=r"in the last 7 days and ahead"):
        house.do(Reserve(8, start=house.rota.now() + ahead_s, length_s=HOUR), ANN)


def test_there_is_a_bound_on_all_of_them(house: House) -> None:
    def fill(desk: Any, names: range, user: str) -> None:
        for number in names:
            one = Reservation(f"{number:012x}", user, "", desk.now + 90 * DAY + number, 1e10, (), desk.now)
            desk.state.book(one)

    def book(first: int, end: int, user: str) -> None:
        house.loop.call(lambda desk: fill(desk, range(first, end), user)).result(PATIENCE_S)

    book(0, MOST_OF_ONE, "ann")
    with pytest.raises(Full, match="ann has 50 reservations"):
        reserve(house, 1)
    house.do(CancelReservation(house.do(Reserve(1, length_s=HOUR), BOB).id), BOB)
    book(MOST_OF_ONE, MOST - FOR_ADMINS, "many others")
    with pytest.raises(Full, match="900 reservations"):
        house.do(Reserve(1, length_s=HOUR), BOB)
    house.do(CancelReservation(house.do(Reserve(1, length_s=HOUR), ROOT).id), ROOT)
    book(MOST - FOR_ADMINS, MOST, "many others")
    with pytest.raises(Full, match="1000 reservations"):
        house.do(Reserve(1, length_s=HOUR), ROOT)

    def empty(desk: Any) -> None:
        for name in list(desk.state.reservations):
            desk.state.unbook(name)

    house.loop.call(empty).result(PATIENCE_S)


# -- bad input --------------------------------------------------------------------------------------------------------
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("gpus", {"gpus": 0}),
    ("gpus", {"gpus": -1}),
    ("gpus", {"gpus": 9}),
    ("gpus", {"gpus": 10**400}),
    ("gpus", {"gpus": 2.0}),
    ("gpus", {"gpus": 3, "nodes": 2}),
    ("nodes", {"nodes": -1}),
    ("nodes", {"nodes": 3, "gpus": 3}),
    ("gpu_type", {"gpu_type": "A100"}),
    ("start", {"start": 1.0}),
    ("start", {"start": -INF}),
    ("start", {"start": NAN}),
    ("start", {"start": INF}),
    ("start", {"start": 10**400}),
    ("start", {"start": "soon"}),
    ("length_s", {"length_s": None}),
    ("length_s", {"end": 2e9}),
    ("length_s", {"length_s": 0.0}),
    ("length_s", {"length_s": -(10**400)}),
    ("length_s", {"length_s": 59.0}),
    ("length_s", {"length_s": 31 * DAY}),
    ("length_s", {"length_s": NAN}),
    ("length_s", {"length_s": 10**400}),
    ("end", {"length_s": None, "end": 1.0}),
    ("end", {"length_s": None, "end": NAN}),
    ("end", {"length_s": None, "end": INF}),
    ("end", {"length_s": None, "end": 10**400}),
    ("end", {"length_s": None, "end": -(10**400)}),
    ("name", {"name": "a\0b"}),
    ("name", {"name": "a\nb"}),
    ("name", {"name": "x" * 501}),
    ("name", {"name": "\ud800"}),
    ("users", {"users": ("ben", "a\x1b[2J")}),
    ("users", {"users": ("",)}),
    ("users", {"users": ("a",) * 101}),
    ("users", {"users": "ben"}),
    ("users", {"users": (1,)}),
    ("user", {"user": "a\0b"}),
    ("key", {"key": "k" * 501}),
    ("why", {"why": "x" * 1001}),
]


def test_nonsense_is_refused_by_its_field(house: House) -> None:
    for field, wrong in WRONG:
        asked: dict[str, Any] = {"gpus": 1, "length_s": HOUR, **wrong}
        with pytest.raises(Invalid) as refusal:
            house.do(Reserve(**asked), ROOT)
        assert refusal.value.field == field, (wrong, refusal.value.message)
    with pytest.raises(Invalid) as refusal:
        house.do(Reserve(1, start=house.rota.now() + 91 * DAY, length_s=HOUR), ROOT)
    assert refusal.value.field == "start" and "90 days" in str(refusal.value)
    assert house.events(e.ReservationMade) == [] and live(house) == []


# -- the end of one ---------------------------------------------------------------------------------------------------
def test_it_is_given_up_by_its_owner_or_an_admin(house: House) -> None:
    mine, other = reserve(house, users=("bob",)), reserve(house)
    for who in (BOB, EVE):
        with pytest.raises(Forbidden):
            house.do(CancelReservation(mine.id), who)
    assert house.do(CancelReservation(mine.id), AGENT) == mine
    house.do(CancelReservation(other.id, why="maintenance"), ROOT)
    ended = [(event.by, event.reservation_id, event.why) for event in house.events(e.ReservationEnded)]
    assert ended == [("bot", mine.id, "cancelled by bot"), ("root", other.id, "maintenance")]
    for name in (mine.id, "nope", ""):
        with pytest.raises(NotFound):
            house.do(CancelReservation(name), ROOT)
    assert live(house) == []


def test_when_its_time_is_over_it_goes_by_itself(build: Build) -> None:
    house, clock = build(), Hurried()
    house.clock = lambda: clock
    house.open()
    first, second = house.do(Reserve(1, length_s=60.0), ANN), reserve(house)
    clock.ahead_s = 30.0
    house.loop.call(expire).result(PATIENCE_S)
    assert live(house) == [first.id, second.id]
    clock.ahead_s = 61.0
    house.loop.call(expire).result(PATIENCE_S)
    assert live(house) == [second.id]
    (ended,) = house.events(e.ReservationEnded)
    assert (ended.reservation_id, ended.by) == (first.id, "rota")


# -- using one --------------------------------------------------------------------------------------------------------
def test_a_run_names_one_that_is_kept_for_its_person(house: House) -> None:
    mine = reserve(house, 2, users=("bob",))
    for who in (ANN, BOB, AGENT, ROOT):
        run_id = house.submit("true", 2, who, held=True, reservation=mine.id)
        assert house.run(run_id).spec.reservation == mine.id
    cid = Principal("cid", Role.USER)
    with pytest.raises(Forbidden, match=f"{mine.id} is kept for ann, bob, not for cid; ask ann or an admin"):
        house.submit("true", 1, cid, reservation=mine.id)
    with pytest.raises(Invalid) as hidden:
        house.do(Submit(house.spec("true", reservation=mine.id), blind=True), cid)
    with pytest.raises(Invalid) as unknown:
        house.submit("true", reservation="no\0such\ud800")
    with pytest.raises(Invalid) as large:
        house.submit("true", 3, reservation=mine.id)
    assert [refusal.value.field for refusal in (hidden, unknown, large)] == ["reservation", "reservation", "gpus"]
    assert "which keeps 2 on node1" in str(large.value)


def test_when_it_is_over_nothing_waits_for_it(build: Build) -> None:
    house, clock = build(), Hurried()
    house.clock = lambda: clock
    house.open()
    made = reserve(house, 2)
    old = house.submit("true", 1, held=True, reservation=made.id)
    assert house.do(Rerun(old, held=True), ANN).spec.reservation == made.id
    clock.ahead_s = 3 * HOUR
    with pytest.raises(Invalid, match="or it is over"):
        house.submit("true", reservation=made.id)
    house.loop.call(expire).result(PATIENCE_S)
    again = house.do(Rerun(old), ANN)
    assert again.spec.reservation == "", "the same once more, without what is gone"
    assert house.wait(again.id).state is RunState.SUCCEEDED


def test_as_many_gpus_in_another_shape_do_not_do(house: House) -> None:
    spread = reserve(house, 4, nodes=2)
    assert where(spread.placement) == {"node1": [0, 1], "node2": [0, 1]}
    house.submit("true", request=Request(4, nodes=2), held=True, reservation=spread.id)
    with pytest.raises(Invalid, match="4 GPUs do not fit into reservation"):
        house.submit("true", 4, reservation=spread.id)


def test_the_loop_begins_and_ends_it_at_its_time(build: Build) -> None:
    """Nothing else happens: its edges alone are reason enough to look again."""
    house, clock = build(), Hurried()
    house.clock = lambda: clock
    house.open()
    made = reserve(house, 2, in_s=HOUR, length_s=HOUR)
    inside, gate = house.gated(2, reservation=made.id)
    house.wait(house.submit("true", 4))  # others go on meanwhile
    assert house.run(inside).state is RunState.QUEUED
    assert house.rota.explain(inside).reasons[0].code == "window"
    clock.ahead_s = HOUR + 2
    house.loop.call(lambda desk: None).result(PATIENCE_S)  # wakes it: its timer counts by the clock we moved
    house.in_state(inside, RunState.RUNNING)
    attempt = house.run(inside).attempt
    assert attempt is not None and attempt.placement == made.placement
    late = house.submit("true", 2, reservation=made.id)
    clock.ahead_s = 2 * HOUR + 4
    house.loop.call(lambda desk: None).result(PATIENCE_S)
    until(lambda: live(house) == [], "it is over")
    assert house.wait(late).state is RunState.SUCCEEDED, "it waits for nothing that is gone"
    assert house.run(inside).state is RunState.RUNNING, "what runs runs on"
    gate.open()
    assert house.wait(inside).state is RunState.SUCCEEDED
