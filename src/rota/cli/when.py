"""Moments as people write them, in their own time zone: now, 9:00, tomorrow 9:00, mon 14:00, in 2h, 2026-11-20 09:00.

Days are counted on the calendar and not in hours: tomorrow at nine is nine by the clock, also when the clocks change.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from typing import Any

import click

from rota.core.times import seconds

EXAMPLES = 'now, 9:00, "tomorrow 9:00", "mon 14:00", "2026-11-20 09:00", 2026-11-20T09:00+01:00, "in 2h" or +2h'
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
CLOCK = r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?"
WRITTEN_OUT = re.compile(rf"([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})[t ]+{CLOCK} ?(z|[+-][0-9]{{2}}:?[0-9]{{2}})?")


def moment(text: str, now: float) -> float:
    """Epoch seconds. ValueError says what could be written instead."""
    words = " ".join(text.lower().split())
    if words == "now":
        return now
    ahead = re.fullmatch(r"(?:in |\+ ?)(.+)", words)
    if ahead:
        return now + _span(ahead[1].replace(" ", ""))
    found = _on_the_calendar(words, datetime.fromtimestamp(now))
    if found is None:
        raise ValueError(f"{text[:80]!r} is not a time; write {EXAMPLES}")
    return found


def _span(text: str) -> float:
    try:
        return seconds(text)
    except ValueError:
        raise ValueError(f"{text[:80]!r} is not a span of time; write 90s, 30m, 2h or 1d") from None


def _on_the_calendar(words: str, here: datetime) -> float | None:
    written = WRITTEN_OUT.fullmatch(words)
    if written:
        day, hours, minutes, rest, zone = written.groups()
        wanted = datetime.combine(_date(day), _clock(hours, minutes, rest))
        return _by_the_clock(wanted) if zone is None else _elsewhere(wanted, zone)
    match = re.fullmatch(rf"(?:([a-z]+) )?{CLOCK}", words)
    if match is None:
        return None
    name, at = match[1], _clock(match[2], match[3], match[4])
    if name is None:  # the next one
        return _by_the_clock(datetime.combine(here.date() + timedelta(days=at < here.time()), at))
    if name in ("today", "tomorrow"):
        return _by_the_clock(datetime.combine(here.date() + timedelta(days=name == "tomorrow"), at))
    wanted_day = [number for number, day in enumerate(DAYS) if len(name) >= 3 and day.startswith(name)]
    if not wanted_day:
        return None
    days = (wanted_day[0] - here.weekday()) % 7
    days += 7 if days == 0 and at < here.time() else 0
    return _by_the_clock(datetime.combine(here.date() + timedelta(days=days), at))


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text} is no day of the calendar; write YYYY-MM-DD") from None


def _clock(hours: str, minutes: str, rest: str | None) -> time:
    try:
        return time(int(hours), int(minutes), int(rest or 0))
    except ValueError:
        raise ValueError(f"{hours}:{minutes} is no time of the day; write 0:00 to 23:59") from None


def _elsewhere(wanted: datetime, zone: str) -> float:
    try:
        return datetime.fromisoformat(f"{wanted.isoformat()}{zone.upper()}").timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{zone} is no distance from UTC; write Z or +01:00") from None


def _by_the_clock(wanted: datetime) -> float:
    """Of an hour that comes twice, the first; one that is left out when the clocks go forward is refused."""
    try:
        found = wanted.timestamp()
        again = datetime.fromtimestamp(found)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{wanted:%Y-%m-%d} is too far away") from None
    if again != wanted:
        raise ValueError(f"there is no {wanted:%H:%M} on {wanted:%Y-%m-%d} here: the clocks go forward")
    return found


class Moment(click.ParamType):  # type: ignore[type-arg] # not every click knows it as a generic
    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        import time as clock

        try:
            return value if isinstance(value, float) else moment(str(value), clock.time())
        except ValueError as error:
            self.fail(str(error), param, ctx)
