"""Who gets a seat, and who gives one up, when there are fewer than connections."""

from __future__ import annotations

import pytest

from rota.api.connections import Connections, Refusal, Seat, network
from rota.core.descriptors import Shares, shares


class Room:
    """Room for `total` connections, `per_peer` of one peer. Descriptors are counted as the kernel does."""

    def __init__(self, total: int, per_peer: int) -> None:
        self.connections = Connections(Shares(total + 10, total, per_peer, total + 5, 2, 1))
        self.closed: list[str] = []

    def come(self, peer: str, name: str = "", *, busy: bool = False) -> Seat:
        seat = self.connections.admit(peer, self.connections.count, lambda: self.closed.append(name))
        if busy:
            self.connections.busy(seat)
        return seat


def test_the_longest_idle_of_a_peer_makes_room_for_its_next() -> None:
    room = Room(100, 3)
    first = room.come("ann", "first")
    for name in ("second", "third"):
        room.come("ann", name)
    room.connections.busy(first)  # it asks and is answered: now it is the one that has waited least
    room.connections.idle(first)
    room.come("ann", "fourth")
    room.come("ann", "fifth")
    assert room.closed == ["second", "third"]
    assert room.connections.count == 3


def test_what_is_in_use_is_not_closed_for_the_same_peer() -> None:
    room = Room(100, 3)
    seats = [room.come("ann", busy=True) for _ in range(3)]
    with pytest.raises(Refusal, match="ann has 3 connections") as refused:
        room.come("ann")
    answer = refused.value.answer()
    assert answer.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    assert b"\r\nretry-after: 5\r\n" in answer
    assert b"connection: close" in answer
    room.come("ben")
    room.connections.leave(seats[0])
    room.come("ann")
    assert (room.closed, room.connections.refused) == ([], 1)


def test_where_all_is_full_the_largest_peer_makes_room_idle_ones_first() -> None:
    room = Room(6, 4)
    for number in range(4):
        room.come("hog", f"hog {number}", busy=number != 2)
    room.come("ann", "ann's")
    room.come("ben", "ben's", busy=True)
    room.come("cid")
    assert room.closed == ["hog 2"], "the largest has one that is idle"
    room.come("dan", busy=True)
    assert room.closed[1:] == ["ann's"], "then whoever has an idle one"


def test_a_peer_with_few_takes_the_newest_of_one_with_many() -> None:
    room = Room(4, 4)
    for number in range(4):
        room.come("hog", f"hog {number}", busy=True)
    room.come("ann", "ann's", busy=True)
    room.come("ben", "ben's", busy=True)
    assert room.closed == ["hog 3", "hog 2"]
    with pytest.raises(Refusal, match="all 4 connections") as refused:
        room.come("hog")
    assert refused.value.answer().startswith(b"HTTP/1.1 503 ")
    with pytest.raises(Refusal):
        room.come("ann")
    room.come("hog two", busy=False)
    assert room.closed[2:] == ["hog 1"]


def test_a_descriptor_that_is_free_again_is_no_room_while_others_are_above_the_bound() -> None:
    """The kernel gives the lowest number that is free, so a low one does not mean that few are in use."""
    room = Room(4, 4)
    for number in range(4):
        room.come("hog", f"hog {number}")
    above = room.connections.admit("ann", 4, lambda: None)
    room.connections.admit("ben", 0, lambda: None)  # what the hog gave up for ann is free by now
    assert (room.closed, room.connections.count) == (["hog 0", "hog 1"], 4)
    room.connections.leave(above)
    room.connections.admit("cid", 1, lambda: None)
    assert len(room.closed) == 2, "there is room again"


def test_leaving_twice_counts_once_and_nobody_is_remembered() -> None:
    room = Room(10, 5)
    seat = room.come("ann")
    for _ in range(2):
        room.connections.leave(seat)
    room.connections.busy(seat)
    room.connections.idle(seat)
    assert room.connections.count == 0
    assert not room.connections._peers


@pytest.mark.parametrize("limit", [64, 256, 1024, 4096, 20_000, 65_536])
def test_the_work_keeps_a_share_of_every_limit(limit: int) -> None:
    found = shares(limit)
    assert 0 < found.per_peer < found.connections < found.processes < found.limit == limit
    assert found.limit - found.connections >= min(128, limit // 2)
    assert found.per_peer <= found.connections * 2 / 3, "one peer leaves room for others"
    watched = found.holders + found.families
    assert found.per_peer + watched < found.connections, "also one that has all watched processes"
    assert 0 < found.families < found.holders
    assert 0 < found.of_one(found.holders) < found.holders


def test_a_refusal_counts_no_connections_where_there_are_none() -> None:
    room = Room(4, 4)
    with pytest.raises(Refusal, match="no descriptor left for a connection") as refused:
        room.connections.admit("ann", 4, lambda: None)
    assert refused.value.status == 503


def test_ten_thousand_watchers_of_one_account_fit_into_a_usual_limit() -> None:
    assert shares(20_000).per_peer > 11_000


def test_parties() -> None:
    assert network("10.1.2.3") == "10.1.2.3"
    assert network("2001:db8:1:2:3::4") == network("2001:db8:1:2:ffff::1") != network("2001:db8:1:3::1")
    assert network("fe80::1%eth0") == "fe80::/64"
    assert network("::ffff:10.1.2.3") == "::ffff:10.1.2.3"
    assert network("strange") == "strange"
