"""What was promised is still promised after a restart, a kill and the dropping of old events; on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text

from rota.adapters.store.compare import compare
from rota.app.ports import StoreBroken
from rota.core import events as e
from rota.core.check import check
from rota.core.reservation import COUNTED_S, Reservation
from rota.core.resources import Slice
from tests.contract.conftest import Opener
from tests.contract.house import House, cluster


def kept(house: House, name: str, gpu: int = 0, **more: object) -> Reservation:
    facts = {"name": "demo", "users": ("Zoë 你好",), "why": "a \0 b", **more}
    made = Reservation(
        name,
        "ann",
        start=house.now + 10,
        end=house.now + 20,
        placement=(Slice("node1", 1 << gpu), Slice("node2", 1 << gpu)),
        made_at=house.now,
        **facts,  # type: ignore[arg-type]
    )
    house.do(e.ReservationMade(at=house.now, by="ann", reservation=made))
    return made


def test_they_are_there_after_a_restart_and_when_old_events_are_gone(where: str, opener: Opener) -> None:
    house = House(opener(where))
    cluster(house)
    first, second, gone = (kept(house, f"r{number}", number) for number in range(3))
    house.commit()
    house.do(e.ReservationEnded(at=house.now, by="ann", reservation_id=gone.id, why="not needed"))
    house.commit()
    never = kept(house, "r9", 3)  # made and given up between two commits
    house.do(e.ReservationEnded(at=house.now, reservation_id=never.id, why="over"))
    run = house.submit("ann", reservation=first.id)
    house.commit()
    house.now += 1
    house.store.compact(house.state, before=house.now, keep_runs_since=0.0)
    assert house.store.events(0, 10) == [], "all of them are old"
    later = kept(house, "r4", 3)
    house.commit()
    house.store.close()  # a kill leaves the same: what was committed

    again = opener(where)
    for state in (again.load(), again.replay()):
        assert state.reservations == {one.id: one for one in (first, second, later)}
        assert state.calendar == (first, second, later)
        assert compare(state, house.state) == []
        assert check(state) == []
        assert state.reservation_of(state.runs[run.id]) == first
    house.restart(again)
    house.do(e.ReservationEnded(at=house.now, reservation_id=first.id, why="over"))
    house.commit()
    assert compare(again.load(), again.replay()) == []
    assert again.load().reservation_of(house.state.runs[run.id]) is None


def test_one_that_had_begun_is_remembered_for_seven_days(where: str, opener: Opener) -> None:
    house = House(opener(where))
    cluster(house)
    first, second = kept(house, "r1"), kept(house, "r2", 1)
    house.commit()
    house.now += 15
    until = first.start + 900
    house.do(e.ReservationEnded(at=house.now, reservation_id="r1", why="over", counted_until=until))
    third = kept(house, "r3", 2)  # made and over between two commits
    house.do(e.ReservationEnded(at=house.now, reservation_id="r3", why="over", counted_until=until + 100))
    house.commit()
    past = {"r1": replace(first, counted_until=until), "r3": replace(third, counted_until=until + 100)}
    for state in (house.store.load(), house.store.replay()):
        assert (state.reservations, state.past_reservations) == ({"r2": second}, past)
        assert compare(state, house.state) == check(state) == []
    house.now += 1
    house.store.compact(house.state, before=house.now, keep_runs_since=0.0)
    house.store.close()
    again = opener(where)
    assert again.load().past_reservations == again.replay().past_reservations == past
    house.restart(again)
    house.now = until + COUNTED_S
    house.do(e.ReservationEnded(at=house.now, reservation_id="r2", why="over"))
    house.commit()
    for state in (again.load(), again.replay()):
        assert state.past_reservations.keys() == {"r3"}, "what is older is forgotten"
        assert compare(state, house.state) == []


def test_events_of_a_version_that_remembered_none_are_read() -> None:
    body = {"at": 5.0, "by": "ann", "reservation_id": "r1", "why": "over"}
    event = e.decode("ReservationEnded", 1, body)
    assert isinstance(event, e.ReservationEnded) and event.counted_until is None


def test_one_that_is_not_what_was_written_stops_the_start(where: str, opener: Opener) -> None:
    house = House(opener(where))
    cluster(house)
    kept(house, "r1")
    house.commit()
    with house.store._writer.transaction() as connection:
        connection.execute(text("UPDATE reservations SET body = replace(body, 'ann', 'bob')"))
    with pytest.raises(StoreBroken, match="table reservations, row 'r1': is not what was written"):
        house.store.load()
