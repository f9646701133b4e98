"""Which time limit to give: "95 % of your runs like this end by 3 h"."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rota.core.distribution import Distribution
from rota.core.predict import History
from rota.core.run import Spec
from rota.core.times import told

SHARE = 0.95
HEADROOM = 1.1  # who takes the limit over should not lose a run to a slow disk
ENOUGH = 5
TOO_LONG = 4.0  # a limit is worth a word when it is so many times what the past says

# up to so much -> rounded up to a multiple of
_ROUND = ((600.0, 60.0), (7200.0, 300.0), (6 * 3600.0, 900.0), (48 * 3600.0, 3600.0), (math.inf, 6 * 3600.0))


@dataclass(frozen=True, slots=True)
class Suggestion:
    limit_s: float
    runs: int  # that ended, and that it stands on
    text: str


def suggest(history: History, user: str, spec: Spec) -> Suggestion | None:
    """None = too little is known, or the limit that was given is near enough."""
    durations = history.like(user, spec)
    if durations is None or len(durations) < ENOUGH:
        return None
    limit_s = _rounded(HEADROOM * Distribution(durations, "").quantile(SHARE))
    if spec.time_limit_s is not None and spec.time_limit_s <= TOO_LONG * limit_s:
        return None
    text = f"{SHARE:.0%} of your runs like this end by {told(limit_s)} ({len(durations)} seen)"
    return Suggestion(limit_s, len(durations), text.replace("%", " %"))


def _rounded(seconds: float) -> float:
    step = next(step for bound, step in _ROUND if seconds <= bound)
    return math.ceil(seconds / step) * step
