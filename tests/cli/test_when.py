"""Moments as people write them: read by the clock on their wall, also when the clocks change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from rota.cli.when import moment

BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"  # written out, so that no table of time zones is needed
THURSDAY = "2026-11-19 15:30:20"


@pytest.fixture(autouse=True)
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", BERLIN)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def read(text: str, now: str = THURSDAY) -> str:
    """As a clock on the wall would show it."""
    found = moment(text, datetime.fromisoformat(now).timestamp())
    return f"{datetime.fromtimestamp(found):%Y-%m-%d %H:%M:%S}"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("now", THURSDAY),
        (" Now ", THURSDAY),
        ("16:00", "2026-11-19 16:00:00"),
        ("9:00", "2026-11-20 09:00:00"),  # today's has been
        ("09:00:30", "2026-11-20 09:00:30"),
        ("15:30:20", THURSDAY),
        ("today 9:00", "2026-11-19 09:00:00"),
        ("tomorrow 9:00", "2026-11-20 09:00:00"),
        ("Tomorrow   09:00", "2026-11-20 09:00:00"),
        ("thu 16:00", THURSDAY[:11] + "16:00:00"),
        ("thu 15:00", "2026-11-26 15:00:00"),
        ("mon 14:00", "2026-11-23 14:00:00"),
        ("Wednesday 14:00", "2026-11-25 14:00:00"),
        ("wednes 14:00", "2026-11-25 14:00:00"),
        ("2026-11-20 09:00", "2026-11-20 09:00:00"),
        ("2026-11-20T09:00", "2026-11-20 09:00:00"),
        ("2026-11-20T09:00+01:00", "2026-11-20 09:00:00"),
        ("2026-11-20T09:00:05Z", "2026-11-20 10:00:05"),
        ("2026-11-20 09:00 -0500", "2026-11-20 15:00:00"),
        ("in 2h", "2026-11-19 17:30:20"),
        ("in 30 min", "2026-11-19 16:00:20"),
        ("+2h", "2026-11-19 17:30:20"),
        ("+ 1d", "2026-11-20 15:30:20"),
    ],
)
def test_what_people_write(text: str, wanted: str) -> None:
    assert read(text) == wanted


def test_nine_is_nine_when_the_clocks_go_back() -> None:
    """On 2026-10-25 at 3:00 it was 2:00 again: that night had an hour more."""
    evening = "2026-10-24 20:00:00"
    begin = datetime.fromisoformat(evening).timestamp()
    assert moment("tomorrow 9:00", begin) - begin == 14 * 3600
    assert moment("9:00", begin) == moment("sun 9:00", begin) == moment("tomorrow 9:00", begin)
    assert moment("in 13h", begin) - begin == 13 * 3600, "a span is a span"
    assert read("in 13h", evening) == "2026-10-25 08:00:00"
    twice = moment("tomorrow 2:30", begin)
    assert twice == moment("2026-10-25T02:30+02:00", begin), "of an hour that comes twice, the first"
    assert moment("2026-10-25T02:30+01:00", begin) - twice == 3600


def test_nine_is_nine_when_the_clocks_go_forward() -> None:
    begin = datetime.fromisoformat("2027-03-27 20:00:00").timestamp()
    assert moment("tomorrow 9:00", begin) - begin == 12 * 3600
    with pytest.raises(ValueError, match="there is no 02:30 on 2027-03-28 here: the clocks go forward"):
        moment("tomorrow 2:30", begin)
    assert moment("2027-03-28T02:30+01:00", begin) == moment("tomorrow 3:30", begin), "with a zone it is clear"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not a time; write now, 9:00"),
        ("soon", "'soon' is not a time"),
        ("tomorrow", "is not a time"),
        ("mo 9:00", "is not a time"),
        ("someday 9:00", "is not a time"),
        ("2026-11-20", "is not a time"),
        ("20.11.2026 9:00", "is not a time"),
        ("9", "is not a time"),
        ("1795078800", "is not a time"),
        ("9:00 tomorrow", "is not a time"),
        ("25:00", "25:00 is no time of the day"),
        ("9:60", "9:60 is no time of the day"),
        ("2026-02-30 09:00", "2026-02-30 is no day of the calendar"),
        ("2026-11-20T09:00+99:00", "is no distance from UTC"),
        ("9999-12-31 23:59", "is too far away"),
        ("in a while", "'awhile' is not a span of time; write 90s, 30m, 2h or 1d"),
        ("+0h", "is not a span of time"),
        ("-2h", "is not a time"),
        ("9:00\x00", "is not a time"),
        ("٩:٠٠", "is not a time"),
        ("x" * 10_000, "is not a time"),
    ],
)
def test_what_is_no_time_is_said_so_with_examples(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as refusal:
        read(text)
    assert len(str(refusal.value)) < 300
