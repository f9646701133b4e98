"""Names of runs grow, whatever the clock does, and none is given twice."""

from __future__ import annotations

import re
import shutil
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from rota.adapters.clock import SystemClock
from rota.app.newids import NewIds
from rota.core.run import RunState

IN_2100, IN_2120 = 4_102_444_800.0, 4_733_510_400.0


@given(st.lists(st.floats(0, IN_2100), min_size=1, max_size=50))
def test_each_is_new_and_greater_than_all_before(times):
    new_id = NewIds()
    given_out = [new_id(now) for now in times]
    assert given_out == sorted(set(given_out))
    assert all(re.fullmatch("[0-9a-f]{12}", one) for one in given_out)


def test_they_say_when():
    assert int(NewIds()(IN_2100), 16) >> 16 == IN_2100


def test_after_their_time_they_begin_anew_and_still_differ():
    new_id = NewIds()
    assert len({new_id(IN_2120) for _ in range(100)}) == 100


def test_many_at_once_are_gone_on_from():
    before, after = NewIds(), NewIds()
    newest = [before(1000.0) for _ in range(10_000)][-1]
    after.go_on_from(newest, 1000.0)
    assert after(1000.0) > newest


def test_what_no_clock_gave_is_not():
    new_id = NewIds()
    new_id.go_on_from("f" * 12, IN_2100)
    assert int(new_id(IN_2100), 16) >> 16 == IN_2100


def test_a_restart_with_a_clock_set_back_gives_none_twice(house):
    before = [house.submit("true") for _ in range(5)]
    house.wait_all(before)
    house.close()
    with patch.object(SystemClock, "now", lambda self: 1000.0):
        house.open()
        after = [house.submit("true") for _ in range(5)]
        house.wait_all(after)
    assert [*before, *after] == sorted({*before, *after})


def test_what_was_forgotten_with_an_old_copy_of_the_store_is_nobodys_again(house):
    """The attempt of a run that the copy does not know still lies in the data directory."""
    house.wait(house.submit("true"))
    house.close()
    files = [file for file in house.where.rglob("rota.db*") if file.is_file()]
    copies = {file: file.with_name(f"copy-{file.name}") for file in files}
    assert copies
    for file, copy in copies.items():
        shutil.copy(file, copy)
    house.open()
    lost = house.submit("echo I am the lost one; exit 3")
    house.wait(lost)
    house.close()
    for file in house.where.rglob("rota.db*"):
        file.unlink()
    for file, copy in copies.items():
        shutil.move(copy, file)
    house.open()
    found = house.submit("echo I am the new one")
    assert found != lost and house.wait(found).state is RunState.SUCCEEDED
    assert house.output(found) == "I am the new one\n"
