"""A time as people write it: exact, or one of the round classes 1h 4h 12h 1d 3d 1w 30d 90d."""

from __future__ import annotations

import re

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
LONGEST_S = 10 * 365 * 86400.0
_ONE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(s|m|min|h|d|w|)")
_MANY = re.compile(r"(?:([0-9]{1,4})-)?([0-9]{1,4})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?")


def seconds(text: str, *, least: float | None = None) -> float:
    """90, 90s, 30m, 2h, 1d, 1w, 1-12, 1-12:00:00, 12:00:00, 30:00 (minutes and seconds, as Slurm has it). Above 0, or
    from `least` up."""
    match = _ONE.fullmatch(text)
    if match:
        value = float(match[1]) * UNITS[match[2]]
    else:
        match = _MANY.fullmatch(text)
        if match is None or (match[1] is None and match[3] is None):
            raise ValueError(f"{text[:50]!r} is not a time; write 90, 90s, 30m, 2h, 1d, 1w, 12:00:00 or 1-12:00:00")
        days, first, second, third = (int(part) if part is not None else None for part in match.groups())
        if days is None and third is None:
            hours, minutes, rest = 0, first or 0, second or 0  # MM:SS
        else:
            hours, minutes, rest = first or 0, second or 0, third or 0
        value = (days or 0) * 86400.0 + hours * 3600.0 + minutes * 60.0 + rest
    if value > LONGEST_S or (value <= 0 if least is None else value < least):
        raise ValueError(
            f"{text[:50]!r} is not a time {'above 0' if least is None else f'from {least:g} up'} and below ten years"
        )
    return value


def about(seconds: float) -> str:
    """How long something takes or is away, as people say it: 40 s, 12 min, 20 h 3 min, 12 d 2 h."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return _two(minutes, 60, "h", "min")
    return _two(round(minutes / 60), 24, "d", "h")


def _two(count: int, each: int, large: str, small: str) -> str:
    return f"{count // each} {large} {count % each} {small}" if count % each else f"{count // each} {large}"


def told(seconds: float) -> str:
    """As `seconds` would read it, in the largest unit that leaves no fraction: 4 h, 90 min, 2.5 s."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size and not seconds % size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
