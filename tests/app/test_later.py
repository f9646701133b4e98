"""Deadlines: kept in order, called off, and none of them in the way of the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from rota.app import later as module
from rota.app.later import Later

PATIENCE_S = 60.0


@contextmanager
def occupied(later: Later) -> Iterator[None]:
    """Its thread has something to do: nothing that is due inside is done before the end, however long that takes."""
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    later(0.0, hold)
    assert begun.wait(PATIENCE_S)
    try:
        yield
    finally:
        go_on.set()


def test_what_is_due_first_is_done_first(monkeypatch):
    later, done, order = Later(), threading.Event(), []
    with occupied(later), monkeypatch.context() as stopped:
        clock = SimpleNamespace(monotonic=lambda: 0.0)  # long ago, and the same moment for all three
        stopped.setattr(module, "time", clock)
        later(0.2, done.set)
        later(0.1, lambda: order.append("second"))
        later(0.0, lambda: order.append("first"))
    assert done.wait(PATIENCE_S)
    assert order == ["first", "second"]
    later.close()


def test_what_is_due_later_is_not_done_before():
    later, done = Later(), threading.Event()
    begun = time.monotonic()
    later(0.2, done.set)
    assert done.wait(PATIENCE_S)
    assert time.monotonic() - begun >= 0.2
    later.close()


def test_what_is_called_off_is_not_done():
    later, done, order = Later(), threading.Event(), []
    with occupied(later):
        call_off = later(0.0, lambda: order.append("no"))
        later(0.0, done.set)
        call_off()
        call_off()
    assert done.wait(PATIENCE_S)
    assert order == []
    later.close()


def test_one_that_fails_does_not_stop_the_others(caplog):
    later, done = Later(), threading.Event()

    def fail() -> None:
        raise ZeroDivisionError

    later(0.0, fail)
    later(0.01, done.set)
    assert done.wait(PATIENCE_S)
    assert "ZeroDivisionError" in caplog.text
    later.close()


def test_ten_thousand_deadlines_are_one_thread():
    before = set(threading.enumerate())
    later, done = Later(), threading.Semaphore(0)
    for _ in range(10_000):
        later(0.01, done.release)
    assert len(set(threading.enumerate()) - before) == 1
    for _ in range(10_000):
        assert done.acquire(timeout=PATIENCE_S)
    later.close()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("delay_s", [0.0, 0.05])
def test_after_the_closing_nothing_comes(delay_s):
    later, order = Later(), []
    with occupied(later):
        later(delay_s, lambda: order.append("no"))
        closing = threading.Thread(target=later.close)
        closing.start()
        while not later._closing:
            closing.join(0.001)
    closing.join(PATIENCE_S)
    assert not later._thread.is_alive()
    assert order == []


def test_a_deadline_may_close_it():
    later, done = Later(), threading.Event()

    def close() -> None:
        later.close()
        done.set()

    later(0.0, close)
    assert done.wait(PATIENCE_S)
