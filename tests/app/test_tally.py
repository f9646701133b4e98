"""The counts are read away from the loop: nothing waits for them but who wants to know them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rota.app import tally as module
from rota.app.commands import Archive, Cancel, Submit
from rota.core.run import RunState
from tests.app.house import ROOT, House, until


def ended(house: House, count: int) -> list[str]:
    runs = [house.do(Submit(house.spec("true", gpus=0), held=True)).id for _ in range(count)]
    for run_id in runs:
        house.do(Cancel(run_id))
    return runs


def slow(house: House, name: str) -> tuple[threading.Event, threading.Event, list[str]]:
    """The store's method waits until it is told to go on; and which threads have called it."""
    begun, go, threads = threading.Event(), threading.Event(), list[str]()
    real: Callable[..., Any] = getattr(house.store, name)

    def wait(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        begun.set()
        assert go.wait(60)
        return real(*args)

    setattr(house.store, name, wait)
    return begun, go, threads


def test_the_loop_goes_on_while_somebody_counts(house: House) -> None:
    ended(house, 2)
    begun, go, threads = slow(house, "counted")
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(house.rota.tally()), name="asks")
    asking.start()
    try:
        assert begun.wait(60)
        ended(house, 3)  # each is answered, and told to all who listen
        ended(house, 1)
    finally:
        go.set()
        asking.join(60)
    until(lambda: house.rota.tally().counts[RunState.CANCELLED] == 6, "what happened meanwhile is counted once")
    assert house.rota.tally().counts == house.store.counts()
    assert set(threads) <= {"asks", threading.current_thread().name}, "never the loop"


def test_what_was_counted_before_it_was_heard_of_counts_once(house: House) -> None:
    """An end is in the store a moment before those who listen are told."""
    house.rota.tally()
    counter = house.rota._counter
    heard, told, go = counter.hear, threading.Event(), threading.Event()

    def late(first: int, events: Any) -> None:
        told.set()
        assert go.wait(60)
        heard(first, events)

    place = house.loop.subscribers.index(heard)
    house.loop.subscribers[place] = late
    run_id = house.do(Submit(house.spec("true", gpus=0), held=True)).id
    sent = house.rota.send(ROOT, Cancel(run_id))
    assert told.wait(60)
    go_on = threading.Timer(0.0, go.set)
    counter._stale = True
    assert house.rota.tally().counts[RunState.CANCELLED] in (0, 1)
    go_on.start()
    sent.result(60)
    until(lambda: house.rota.tally().counts[RunState.CANCELLED] == 1, "once")
    ended(house, 1)
    until(lambda: house.rota.tally().counts == house.store.counts(), "and it stays right")


def test_others_have_the_numbers_of_a_moment_ago_while_one_counts_anew(house: House) -> None:
    ended(house, 2)
    until(lambda: house.rota.tally().counts[RunState.CANCELLED] == 2, "both are counted")
    house.rota._counter._stale = True
    begun, go, _ = slow(house, "counted")
    asking = threading.Thread(target=house.rota.tally)
    asking.start()
    try:
        assert begun.wait(60)
        ended(house, 1)
        until(lambda: house.rota.tally().counts[RunState.CANCELLED] == 3, "nobody waits, and news are counted in")
    finally:
        go.set()
        asking.join(60)
    assert house.rota.tally().counts == house.store.counts()


def test_runs_that_ended_long_ago_are_put_away_and_back(house: House) -> None:
    runs = ended(house, 3)
    house.reopen()
    house.rota.tally()
    for run_id in runs:
        house.do(Archive(run_id))
    until(lambda: house.rota.tally().counts[RunState.CANCELLED] == 0, "all are out of sight")
    house.do(Archive(runs[0], archived=False))
    until(lambda: house.rota.tally().counts == house.store.counts(), "one is back")
    assert house.rota.tally().counts[RunState.CANCELLED] == 1


def test_if_nobody_asks_for_long_the_notes_are_thrown_away(house: House, monkeypatch: Any) -> None:
    house.rota.tally()
    monkeypatch.setattr(module, "MOST_NOTES", 3)
    ended(house, 12)
    until(lambda: len(house.rota._counter._notes) <= 4, "bounded")
    until(lambda: house.rota.tally().counts[RunState.CANCELLED] == 12, "and counted anew")
