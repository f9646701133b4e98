"""Deadlines: kept in order, called off, and none of them in the way of the others."""

from __future__ import annotations

import threading
import time

from rota.app.later import Later

PATIENCE_S = 30.0


def test_what_is_due_first_is_done_first():
    later, done, order = Later(), threading.Event(), []
    later(0.2, done.set)
    later(0.1, lambda: order.append("second"))
    later(0.0, lambda: order.append("first"))
    assert done.wait(PATIENCE_S)
    assert order == ["first", "second"]
    later.close()


def test_what_is_called_off_is_not_done():
    later, done, order = Later(), threading.Event(), []
    call_off = later(0.05, lambda: order.append("no"))
    later(0.1, done.set)
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
    before = threading.active_count()
    later, done = Later(), threading.Semaphore(0)
    for _ in range(10_000):
        later(0.01, done.release)
    assert threading.active_count() == before + 1
    for _ in range(10_000):
        assert done.acquire(timeout=PATIENCE_S)
    later.close()
    assert threading.active_count() == before


def test_after_the_closing_nothing_comes_and_a_deadline_may_close_it():
    later, order = Later(), []
    later(0.05, lambda: order.append("no"))
    later.close()
    time.sleep(0.1)
    assert order == []
    other, done = Later(), threading.Event()

    def close() -> None:
        other.close()
        done.set()

    other(0.0, close)
    assert done.wait(PATIENCE_S)
