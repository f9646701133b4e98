"""Numbers as people read them: 42 s, 37 min, 9.4 h, 3.2 d; shares in per cent."""

from __future__ import annotations

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0


def span(seconds: float) -> str:
    """Two digits at least, and never more than anybody reads."""
    sign, size = ("-" if seconds < 0 else ""), abs(seconds)
    if size < 0.05:
        return "0 s"
    for unit_s, word, below_s in ((1.0, "s", 99.5), (MINUTE_S, "min", 99.5 * MINUTE_S), (HOUR_S, "h", 2 * DAY_S)):
        if size < below_s:
            return f"{sign}{digits(size / unit_s)} {word}"
    return f"{sign}{digits(size / DAY_S)} d"


def digits(number: float) -> str:
    """0, 0.07, 4.2, 37, 1,204: as exact as is read; no -0."""
    size = abs(number)
    if size == 0 or size < 0.0005:
        return "0"
    if size < 0.095:
        return f"{number:.2g}"
    if size < 0.995:
        return f"{number:.2f}"
    if size < 9.95:
        return f"{number:.1f}".removesuffix(".0")
    return f"{number:,.0f}"


def percent(share: float) -> str:
    """Near 0 and near 100 a tenth matters."""
    value = 100.0 * share
    return f"{value:.1f} %" if 0 < value < 9.95 or 90 < value < 99.95 else f"{value:.0f} %"


def many(count: int, one: str, more: str = "") -> str:
    """1 run, 2 runs, 3 people."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"
