"""Names of runs grow, whatever the clock does."""

from __future__ import annotations

import re
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from rota.adapters.clock import SystemClock
from rota.app.newids import NewIds

IN_2100 = 4_102_444_800.0


@given(st.lists(st.floats(0, IN_2100), min_size=1, max_size=50))
def test_each_is_new_and_greater_than_all_before(clock):
    times = iter(clock)
    new_id = NewIds(lambda: next(times), None)
    given_out = [new_id() for _ in clock]
    assert given_out == sorted(set(given_out))
    assert all(re.fullmatch("[0-9a-f]{12}", one) for one in given_out)


def test_they_say_when():
    assert int(NewIds(lambda: IN_2100, None)(), 16) >> 16 == IN_2100


def test_the_last_server_is_gone_on_from():
    assert NewIds(lambda: 5.0, "6af9a5ed5e05")() == "6af9a5ed5e06"


def test_after_the_last_of_all_comes_the_present():
    new_id = NewIds(lambda: IN_2100, "f" * 12)
    first = new_id()
    assert (first, new_id() > first) == ("0" * 12, True)


def test_a_restart_with_a_clock_set_back_gives_none_twice(house):
    before = [house.submit("true") for _ in range(5)]
    house.wait_all(before)
    house.close()
    with patch.object(SystemClock, "now", lambda self: 1000.0):
        house.open()
        after = [house.submit("true") for _ in range(5)]
        house.wait_all(after)
    assert [*before, *after] == sorted({*before, *after})
