"""The round times people declare when they do not know better: 1 h, 4 h, 12 h, 1 d, 3 d, 1 w, 30 d, 90 d.

A declared time says less by its seconds than by its class: who writes "3 d" means "long, I did not look".
"""

from __future__ import annotations

from bisect import bisect_left

HOUR_S, DAY_S = 3600.0, 86400.0
CLASSES = (HOUR_S, 4 * HOUR_S, 12 * HOUR_S, DAY_S, 3 * DAY_S, 7 * DAY_S, 30 * DAY_S, 90 * DAY_S)


def class_of(seconds: float) -> float:
    """The shortest class that holds it, in seconds; whatever is longer than all of them is of the longest."""
    return CLASSES[min(bisect_left(CLASSES, seconds), len(CLASSES) - 1)]
