"""Where an axis is marked, and with which words."""

from __future__ import annotations

from math import floor, log10

Tick = tuple[float, str]

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * n for n in (1, 2, 3, 6, 12)),
    *(_DAY * n for n in (1, 2, 7, 14, 30, 90, 180, 365)),
)
# of a wait, on an axis where each step is a multiple of the one before
_LOG = (
    (1, "1 s"), (10, "10 s"), (_MINUTE, "1 min"), (10 * _MINUTE, "10 min"), (_HOUR, "1 h"), (6 * _HOUR, "6 h"),
    (_DAY, "1 d"), (7 * _DAY, "1 w"), (30 * _DAY, "30 d"), (365 * _DAY, "1 y"), (3650 * _DAY, "10 y"),
)  # fmt: skip


def times(end_s: float, most: int = 10) -> list[Tick]:
    """From 0 to `end_s`, in steps of a clock or a calendar."""
    step = next((step for step in _STEPS if end_s / step <= most), 0)
    if not step:  # centuries: whatever is round
        step = _DAY * 365 * round(_nice(end_s / _DAY / 365 / most) + 0.5)
    return [(at * step, time(at * step)) for at in range(floor(end_s / step) + 1)]


def time(seconds: float) -> str:
    """0, 30 s, 15 min, 6 h, 1 d, 1 d 12 h."""
    if seconds < _MINUTE:
        return f"{seconds:g} s" if seconds else "0"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:g} min"
    if seconds < _DAY:
        return f"{seconds / _HOUR:g} h"
    days, rest = divmod(round(seconds), _DAY)
    return f"{days} d {rest // _HOUR} h" if rest >= _HOUR else f"{days} d"


def waits(largest_s: float) -> list[Tick]:
    """From 1 s to the first mark that is not below `largest_s`."""
    found: list[Tick] = []
    for at, word in _LOG:
        found.append((at, word))
        if at >= largest_s:
            break
    return found


def _nice(step: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    power = 10.0 ** floor(log10(step))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= step * 0.999)
