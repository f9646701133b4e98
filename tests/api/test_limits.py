"""Token buckets: how fast somebody may call."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.api import limits
from rota.api.limits import Buckets


def test_a_burst_then_one_after_the_other() -> None:
    buckets = Buckets(2.0, 3)
    assert [buckets.take("ann", 0.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert buckets.take("ann", 0.0) == 0.5
    assert buckets.take("ann", 0.25) == 0.25
    assert buckets.take("ann", 0.5) == 0.0
    assert buckets.take("ben", 0.5) == 0.0, "another's bucket is full"


def test_to_ask_takes_nothing() -> None:
    buckets = Buckets(1.0, 1)
    assert not any(buckets.empty("ann", 0.0) for _ in range(10))
    assert buckets.take("ann", 0.0) == 0.0
    assert buckets.empty("ann", 0.5)
    assert not buckets.empty("ann", 1.0)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    buckets = Buckets(1.0, 1)
    buckets.take("ann", 100.0)
    assert buckets.take("ann", 0.0) == 1.0


def test_memory_is_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REMEMBERED", 10)
    buckets = Buckets(0.001, 1)
    for i in range(100):
        buckets.take(f"user{i}", 0.0)
    assert len(buckets._left) == 10
    assert buckets.empty("user99", 0.0)
    assert not buckets.empty("user0", 0.0)


@given(st.floats(0.1, 100), st.integers(1, 50), st.lists(st.floats(0, 10), min_size=1, max_size=200))
def test_never_more_than_the_burst_and_the_rate(rate: float, burst: int, gaps: list[float]) -> None:
    buckets, now, passed = Buckets(rate, burst), 0.0, 0
    for gap in gaps:
        now += gap
        passed += buckets.take("ann", now) == 0.0
    assert passed <= burst + rate * now + 1e-6


@given(st.floats(0.1, 100), st.lists(st.floats(0, 1), max_size=50))
def test_who_waits_as_told_is_let_through(rate: float, gaps: list[float]) -> None:
    buckets, now = Buckets(rate, 1), 0.0
    for gap in gaps:
        now += gap
        wait = buckets.take("ann", now)
        if wait:
            now += wait + 1e-9
            assert buckets.take("ann", now) == 0.0
