"""Bytes that no request has taken yet: who is cut off where they are too many."""

from __future__ import annotations

from rota.api.receive_buffers import ReceiveBuffers


class Client:
    def __init__(self, buffers: ReceiveBuffers, party: str) -> None:
        self._buffers, self._party = buffers, party
        self.size = 0
        self.is_cut_off = False

    def waiting(self) -> int:
        return self.size

    def cut_off(self) -> None:
        self.size, self.is_cut_off = 0, True

    def has(self, size: int) -> Client:
        self.size = size
        self._buffers.note(self._party, self, size)
        return self


def test_over_the_bound_of_one_its_longest_waiting_connection_is_cut_off() -> None:
    buffers = ReceiveBuffers(100, 1000)
    other = Client(buffers, "bob").has(90)
    first, second, third = (Client(buffers, "ann").has(40) for _ in range(3))
    assert [one.is_cut_off for one in (other, first, second, third)] == [False, True, False, False]
    assert buffers.size == 170


def test_over_the_bound_of_all_one_of_the_party_with_most_is() -> None:
    buffers = ReceiveBuffers(100, 100)
    first, second = Client(buffers, "ann").has(40), Client(buffers, "ann").has(40)
    other = Client(buffers, "bob").has(30)
    assert [one.is_cut_off for one in (other, first, second)] == [False, True, False]


def test_one_that_makes_progress_goes_behind_the_others() -> None:
    buffers = ReceiveBuffers(100, 1000)
    moving, stuck = Client(buffers, "ann").has(50), Client(buffers, "ann").has(40)
    moving.has(10).has(50)
    Client(buffers, "ann").has(20)
    assert stuck.is_cut_off
    assert not moving.is_cut_off


def test_bytes_that_a_request_took_in_the_meantime_do_not_count() -> None:
    buffers = ReceiveBuffers(100, 1000)
    first = Client(buffers, "ann").has(60)
    first.size = 10  # nobody noted it
    second = Client(buffers, "ann").has(60)
    assert not first.is_cut_off
    assert not second.is_cut_off
    assert buffers.size == 70


def test_nothing_is_left_of_those_that_have_gone() -> None:
    buffers = ReceiveBuffers(100, 1000)
    clients = [Client(buffers, party).has(10) for party in ("ann", "ann", "bob")]
    for client in clients:
        client.has(0)
    assert buffers.size == 0
    assert not buffers._parties
    Client(buffers, "ann").has(500)
    assert buffers.size == 0, "one connection that has more than the bound is cut off"
    assert not buffers._parties
