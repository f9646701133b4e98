"""Long work of accounts: in turns, and each rests for as long as its work took."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from rota.adapters.backends import turns
from rota.adapters.backends.turns import Turns
from tests.backends.helpers import wait_for


class Clock:
    """Stands in for `time`: it moves on only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(turns, "time", clock)
    return clock


@pytest.fixture
def opened(clock: Clock) -> Iterator[Turns]:
    made = Turns("rota-test", lambda delay_s, act: lambda: None, urgent_beside=True)
    made.open()
    yield made
    clock.now += 1000
    made.close()


class Piece:
    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.go.wait(60)


def put(turns: Turns, account: int, *, urgent: bool = False) -> Piece:
    piece = Piece()
    turns.put(account, piece, piece, urgent=urgent)
    return piece


def idle(turns: Turns, account: int) -> Callable[[], bool]:
    return lambda: turns._lines[account].busy == 0


def test_urgent_work_is_done_beside_one_other_piece_and_shortens_no_rest(opened: Turns, clock: Clock) -> None:
    usual = put(opened, 1)
    assert usual.begun.wait(60)
    waits, urgent, late = put(opened, 1), put(opened, 1, urgent=True), put(opened, 1, urgent=True)
    assert urgent.begun.wait(60)
    clock.now += 1.0
    other = put(opened, 2)
    assert other.begun.wait(60), "other accounts have their turn"
    assert not late.begun.is_set() and not waits.begun.is_set()
    for piece in (other, usual):
        piece.go.set()
    assert late.begun.wait(60)
    clock.now += 0.5
    for piece in (urgent, late):
        piece.go.set()
    wait_for(idle(opened, 1), "its pieces to end")
    rests = opened._lines[1].rests_until
    assert rests >= 102.0, "as long as the first one took, whatever ended last"
    assert not waits.begun.is_set()
    clock.now = rests
    put(opened, 3).go.set()  # somebody looks
    assert waits.begun.wait(60)
    waits.go.set()
