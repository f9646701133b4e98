"""How long a run will take, from what ended before: same user and command first, then wider and wider circles.

The answer is an upper-middle quantile of the newest durations, robust against the one run that crashed at once.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Iterator

from rota.core.run import Run, Spec

REMEMBERED = 24  # durations per circle
CIRCLES = 4096
ENOUGH = 3
QUANTILE = 0.75

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")


def fingerprint(spec: Spec) -> str:
    """The command with its numbers blanked out: `train.py --lr 0.1` and `--lr 0.2` are alike."""
    return _NUMBER.sub("#", " ".join(spec.argv)[:2000])


def _circles(user: str, spec: Spec) -> Iterator[str]:
    yield from _of_this_command(user, spec)
    yield f"{user}||{spec.request.gpus}"


def _of_this_command(user: str, spec: Spec) -> Iterator[str]:
    mark = hash_text(fingerprint(spec))
    yield f"{user}|{mark}|{spec.request.gpus}"
    yield f"{user}|{mark}"


def hash_text(text: str) -> int:
    """FNV-1a: stable from process to process, unlike hash()."""
    value = 0xCBF29CE484222325
    for byte in text.encode("utf-8", "surrogateescape"):
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


class History:
    def __init__(self) -> None:
        self._known: OrderedDict[str, deque[float]] = OrderedDict()

    def learn(self, user: str, spec: Spec, ran_s: float) -> None:
        for circle in _circles(user, spec):
            durations = self._known.pop(circle, None) or deque(maxlen=REMEMBERED)
            durations.append(ran_s)
            self._known[circle] = durations
        while len(self._known) > CIRCLES:
            self._known.popitem(last=False)

    def copy(self) -> History:
        twin = History()
        twin._known = OrderedDict((circle, durations.copy()) for circle, durations in self._known.items())
        return twin

    def predict(self, user: str, spec: Spec) -> float | None:
        """None = not enough is known. Of a run with a time limit only its own command's past counts: what else its
        person runs says less about it than the limit does."""
        if not self._known:
            return None
        for circle in _circles(user, spec) if spec.time_limit_s is None else _of_this_command(user, spec):
            durations = self._known.get(circle)
            if durations is not None and len(durations) >= ENOUGH:
                ranked = sorted(durations)
                return max(1.0, ranked[min(len(ranked) - 1, int(QUANTILE * len(ranked)))])
        return None


def expectation(history: History, user: str, spec: Spec, default_s: float) -> tuple[float, str]:
    """What the scheduler believes, and why: the submitter's estimate, else history, the limit, the default."""
    if spec.estimate_s is not None:
        believed, source = spec.estimate_s, "estimate"
    else:
        predicted = history.predict(user, spec)
        if predicted is not None:
            believed, source = predicted, "history"
        elif spec.time_limit_s is not None:
            return spec.time_limit_s, "limit"
        else:
            believed, source = default_s, "default"
    if spec.time_limit_s is not None and spec.time_limit_s < believed:
        return spec.time_limit_s, "limit"
    return believed, source


def relearn(history: History, run: Run) -> None:
    """Take in an ended run."""
    for past in run.past[-1:]:
        if past.exit.ok and past.exit.started_tick is not None and past.exit.ended_tick is not None:
            history.learn(run.user, run.spec, max(0.0, past.exit.ended_tick - past.exit.started_tick))
