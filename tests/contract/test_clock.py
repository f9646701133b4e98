"""Wall-clock jumps do nothing to a running process."""

from __future__ import annotations

import time

import pytest

from rota.adapters.clock import ManualClock, SystemClock


def test_the_wall_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before, clock = time.time(), SystemClock()
    first = clock.now()
    assert abs(first - before) < 60.0  # a machine may stand still for a while, and the jumps are of hours
    for jump in (3600.0, -3600.0, -86_400.0, 2**31):
        monkeypatch.setattr(time, "time", lambda jump=jump: first + jump)
        assert 0 <= clock.now() - first < 60.0


def test_ticks_are_boot_time_and_never_go_back() -> None:
    clock = SystemClock()
    seen = [(clock.now(), clock.tick()) for _ in range(1000)]
    assert seen == sorted(seen)
    before, now, after = time.clock_gettime(time.CLOCK_BOOTTIME), clock.tick(), time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= now <= after
    assert len(clock.boot_id()) == 36


def test_the_manual_clock_does_as_told() -> None:
    clock = ManualClock(now=100.0, tick=5.0)
    clock.advance(10)
    assert (clock.now(), clock.tick()) == (110.0, 15.0)
    clock.set(120.0)
    clock.set(50.0)
    assert (clock.now(), clock.tick()) == (120.0, 25.0)
    clock.jump_wall(-1000.0)
    assert (clock.now(), clock.tick()) == (-880.0, 25.0)
    with pytest.raises(ValueError, match="go back"):
        clock.advance(-1)
    clock.reboot("other")
    assert (clock.boot_id(), clock.tick()) == ("other", 1.0)
