"""Text for people: others' words made harmless, times and amounts as they are read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

NEAR_S = 120.0


def plain(text: object) -> str:
    """Without control characters, bidi tricks and line ends: a name is data, it must not steer the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(text))


def span(seconds: float | None) -> str:
    """4.2 s, 3 min, 2 h 05, 3 d 04 h: as exact as anybody reads it."""
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    if seconds < 5970:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * 86400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02}"
    if seconds < 1e9:
        return f"{int(seconds // 86400)} d {int(seconds % 86400 // 3600):02} h"
    return "ages"


def clock(at: float | None) -> str:
    """A moment, in local time; the day only where it is not today."""
    if at is None:
        return "-"
    try:
        moment = time.localtime(at)
    except (OverflowError, OSError, ValueError):
        return "-"
    today = time.localtime()[:3] == moment[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", moment)


def moment(at: float | None) -> str:
    """As `clock`, to the minute: for what is foretold. What is near is told to the second."""
    shown = clock(at)
    near = at is not None and at - time.time() < NEAR_S
    return shown if near or shown.count(":") < 2 else shown[:-3]


def in_time(at: float | None, now: float | None = None) -> str:
    """in 5 min (14:05:00); now; not known."""
    return _in_time(at, now, clock)


def about(at: float | None) -> str:
    """in 5 min (14:05); now; not known."""
    return _in_time(at, None, moment)


def _in_time(at: float | None, now: float | None, shown: Callable[[float], str]) -> str:
    if at is None:
        return "not known"
    left_s = at - (time.time() if now is None else now)
    return "now" if left_s < 1.0 else f"in {span(left_s)} ({shown(at)})"


def expected(at: float | None) -> str:
    """When a run starts, as part of a sentence."""
    return "start not known" if at is None else f"expected to start {in_time(at)}"


def homely(path: str) -> str:
    """A path with ~ for one's home."""
    home = os.environ.get("HOME", "").rstrip("/")
    return f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path


def gpus(names: tuple[str, ...] | list[str]) -> str:
    """node1:0,1,2 node2:5 instead of every GPU with its node."""
    by_node: dict[str, list[str]] = {}
    for name in names:
        node, _, number = name.rpartition(":")
        by_node.setdefault(node, []).append(number)
    return plain(" ".join(f"{node}:{','.join(numbers)}" for node, numbers in by_node.items())) or "-"


def state(word: str) -> str:
    """A run's state as people read it: what is `ready` on the wire waits for its release, and is held."""
    return "held" if word == "ready" else plain(word)


PRIORITIES = {1: "low", 2: "normal", 3: "high", 4: "critical"}


def priority(number: int) -> str:
    return PRIORITIES.get(number, str(number))
