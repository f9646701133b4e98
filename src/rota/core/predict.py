"""How long a run will take, from what ended before: same user and command first, then wider and wider circles.

The circles, closest first: the same command of the same person with as many GPUs; the other runs of its sweep; the same
command with any number of GPUs; any run of the person with as many GPUs. Of a run with a time limit the last says less
than the limit, so there the person's habit of declaring stands in its place: how long their runs that were declared
alike (core/classes.py) really took.

An estimate binds nobody. Where the run has no time limit either, it counts for as much more as the person's runs with
such an estimate took, however they ended.

Each circle keeps its newest good ends, sorted as they come: a question costs a few look-ups whatever the past holds.
When there are too many circles, whoever has most loses the oldest: nobody makes the past of others be forgotten.
Other threads may read while one learns: every look takes a whole copy in one step.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterator
from hashlib import blake2b

from rota.core.classes import class_of
from rota.core.distribution import Distribution, bounded, estimated, guessed
from rota.core.run import Run, Spec

REMEMBERED = 24  # durations per circle
HABITS_REMEMBERED = 32  # per person and declared class: there are few of these, and they are wide
CIRCLES = 8192
ENOUGH = 3
ENOUGH_DECLARED = 5
ENOUGH_OF_ALL = 20  # before what everybody does is held against somebody new
QUANTILE = 0.75
MARKED = 500  # characters of a command that are looked at

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
Circle = tuple[object, ...]


def fingerprint(spec: Spec) -> str:
    """The command with its numbers blanked out: `train.py --lr 0.1` and `--lr 0.2` are alike."""
    return _NUMBER.sub("#", " ".join(spec.argv)[:MARKED])


def hash_text(text: str) -> int:
    """FNV-1a: stable from process to process, unlike hash()."""
    value = 0xCBF29CE484222325
    for byte in text.encode("utf-8", "surrogateescape"):
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def _of_this_command(user: str, spec: Spec) -> Iterator[tuple[Circle, str]]:
    """Circles, and what each is in words."""
    mark = blake2b(fingerprint(spec).encode("utf-8", "surrogateescape"), digest_size=8).digest() if spec.argv else b""
    if mark:  # else a trace without commands: nothing is known to be like it
        yield (user, mark, spec.request.gpus), "runs of this command"
    if spec.group:
        yield ("sweep", spec.group), "runs of its sweep"
    if mark:
        yield (user, mark), "runs of this command with other numbers of GPUs"


def _of_this_size(user: str, spec: Spec) -> Circle:
    return (user, b"", spec.request.gpus)


def _declared(user: str, declared_s: float, gpus: int) -> tuple[Circle, Circle, Circle]:
    """The person's runs that were declared alike and are as wide; of any width; everybody's."""
    kind = class_of(declared_s)
    return ("declared", user, kind, gpus), ("declared", user, kind), ("declared", kind)


def _estimated(user: str, estimate_s: float) -> Circle:
    """The person's runs with about such an estimate and without a time limit, by steps of a factor of four."""
    return ("estimated", user, int(math.log2(max(1.0, estimate_s)) // 2))


class _Sample:
    """The newest durations of one circle, in the order they came and sorted."""

    __slots__ = ("newest", "ranked")

    def __init__(self) -> None:
        self.newest: deque[float] = deque()
        self.ranked: list[float] = []

    def add(self, ran_s: float, most: int) -> None:
        if len(self.newest) >= most:
            del self.ranked[bisect_left(self.ranked, self.newest.popleft())]
        self.newest.append(ran_s)
        insort(self.ranked, ran_s)

    def copy(self) -> _Sample:
        twin = _Sample()
        twin.newest, twin.ranked = self.newest.copy(), self.ranked.copy()
        return twin


class History:
    def __init__(self, under: History | None = None) -> None:
        self._known: dict[Circle, _Sample] = {}
        self._of: dict[str, OrderedDict[Circle, None]] = {}  # each person's of them; the one learned longest ago first
        self._under = under  # what is known besides; see copy()

    def learn(self, user: str, spec: Spec, ran_s: float) -> None:
        for circle, _ in _of_this_command(user, spec):
            self._take(user, circle, ran_s, REMEMBERED)
        self._take(user, _of_this_size(user, spec), ran_s, REMEMBERED)
        if spec.time_limit_s is not None:
            as_wide, any_width, all_people = _declared(user, spec.time_limit_s, spec.request.gpus)
            self._take(user, as_wide, ran_s, HABITS_REMEMBERED)
            # One without GPUs costs nobody anything, and may end at once under any limit: it says nothing of others.
            if spec.request.gpus:
                self._take(user, any_width, ran_s, HABITS_REMEMBERED)
                self._take("", all_people, ran_s, HABITS_REMEMBERED)
        while len(self._known) > CIRCLES:
            self._forget_one()

    def _forget_one(self) -> None:
        person, circles = max(self._of.items(), key=lambda one: len(one[1]))
        self._known.pop(circles.popitem(last=False)[0], None)  # the circle of a sweep may be several people's
        if not circles:
            del self._of[person]

    def learn_estimate(self, user: str, estimate_s: float, ran_s: float) -> None:
        """Take in by how much a run outlived its estimate, or how much sooner it ended."""
        self._take(user, _estimated(user, estimate_s), ran_s / max(1.0, estimate_s), HABITS_REMEMBERED)

    def overrun(self, user: str, estimate_s: float) -> float:
        """By what factor nine of ten of the person's runs stay below such an estimate; 1 = it is believed as it is."""
        found = self._enough(_estimated(user, estimate_s), ENOUGH_DECLARED)
        return 1.0 if found is None else max(1.0, found[min(len(found) - 1, int(0.9 * len(found)))])

    def _take(self, user: str, circle: Circle, ran_s: float, most: int) -> None:
        sample = self._known.get(circle)
        if sample is None:
            before = self._find(circle)
            sample = self._known[circle] = _Sample() if before is None else before.copy()
        circles = self._of.setdefault(user, OrderedDict())
        circles[circle] = None
        circles.move_to_end(circle)
        sample.add(ran_s, most)

    def copy(self) -> History:
        """To try something out on: what is learned there stays there. It costs nothing, and is good for as long as
        nothing is learned here."""
        return History(under=self)

    def _find(self, circle: Circle) -> _Sample | None:
        found = self._known.get(circle)
        return self._under._find(circle) if found is None and self._under is not None else found

    def predict(self, user: str, spec: Spec) -> float | None:
        """None = not enough is known. Of a run with a time limit only its own command's past and its sweep's count:
        what else its person runs says less about it than the limit does."""
        if not self._known and self._under is None:
            return None
        found = self.like(user, spec)
        if found is None and spec.time_limit_s is None:
            found = self._enough(_of_this_size(user, spec), ENOUGH)
        return None if found is None else _upper(found)

    def like(self, user: str, spec: Spec) -> tuple[float, ...] | None:
        """How long the runs of its command or its sweep took, sorted."""
        for circle, _ in _of_this_command(user, spec):
            found = self._enough(circle, ENOUGH)
            if found is not None:
                return found
        return None

    def habit(self, user: str, declared_s: float, gpus: int) -> tuple[float, float, int] | None:
        """(median, 90 % quantile, how many) of what this person's runs really took that were declared alike."""
        found = self.declared(user, declared_s, gpus)
        if found is None:
            return None
        count = len(found)
        return found[(count - 1) // 2], found[min(count - 1, int(0.9 * count))], count

    def quantiles(self, user: str, spec: Spec) -> Distribution | None:
        """All that is known of runs like it; None = not enough."""
        if not self._known and self._under is None:
            return None
        limit = spec.time_limit_s
        for circle, words in _of_this_command(user, spec):
            found = self._enough(circle, ENOUGH)
            if found is not None:
                return _distribution(found, words, limit)
        if limit is None:
            found = self._enough(_of_this_size(user, spec), ENOUGH)
            return None if found is None else _distribution(found, f"{user}'s runs with as many GPUs", limit)
        found = self.declared(user, limit, spec.request.gpus)
        if found is not None:
            return _distribution(found, f"{user}'s runs with such a time limit", limit)
        found = self._enough(_declared(user, limit, spec.request.gpus)[-1], ENOUGH_OF_ALL)
        return None if found is None else _distribution(found, "everybody's runs with such a time limit", limit)

    def declared(self, user: str, declared_s: float, gpus: int) -> tuple[float, ...] | None:
        """How long the person's runs really took that were declared alike, sorted; of its width if enough are known."""
        narrow, wide, _ = _declared(user, declared_s, gpus)
        return self._enough(narrow, ENOUGH_DECLARED) or self._enough(wide, ENOUGH_DECLARED)

    def alike(self, user: str, spec: Spec, most: int) -> list[float]:
        """How long the runs took that say most about this one, newest first within a circle: those of its command; else
        those that were declared alike, of its width first, until there are enough; else those of its width."""
        known = self.like(user, spec)
        if known is not None:
            return list(known[-most:])
        if spec.time_limit_s is None:
            return list(self._enough(_of_this_size(user, spec), ENOUGH) or ())[:most]
        found: list[float] = []
        for circle in _declared(user, spec.time_limit_s, spec.request.gpus):
            sample = self._find(circle)
            if sample is not None:
                found += reversed(sample.newest.copy())
            if 2 * len(found) >= most:
                break
        return found[:most]

    def _enough(self, circle: Circle, least: int) -> tuple[float, ...] | None:
        sample = self._find(circle)
        if sample is None:
            return None
        found = tuple(sample.ranked)  # in one step: the writer may be at it
        return found if len(found) >= least else None


def _upper(ranked: tuple[float, ...]) -> float:
    """An upper-middle quantile, robust against the one run that ended at once."""
    return max(1.0, ranked[min(len(ranked) - 1, int(QUANTILE * len(ranked)))])


def _distribution(ranked: tuple[float, ...], words: str, cap_s: float | None) -> Distribution:
    points = tuple(max(1.0, ran_s) for ran_s in ranked)
    return Distribution(points, f"{len(ranked)} {words}", len(ranked), cap_s)


def expectation(
    history: History, user: str, spec: Spec, default_s: float, *, corrects: bool = True
) -> tuple[float, str]:
    """What the scheduler believes, and why: the submitter's estimate, else history, what the person's runs with such
    a limit took, the limit, the default. Never more than the limit. Without `corrects` a limit is believed as it is."""
    limit = spec.time_limit_s
    if limit is not None and not corrects:
        return (limit, "limit") if spec.estimate_s is None or spec.estimate_s > limit else (spec.estimate_s, "estimate")
    if spec.estimate_s is not None:
        believed, source = spec.estimate_s, "estimate"
        if limit is None and corrects and (factor := history.overrun(user, spec.estimate_s)) > 1.0:
            believed, source = spec.estimate_s * factor, "declared habit"
    else:
        predicted = history.predict(user, spec)
        if predicted is not None:
            believed, source = predicted, "history"
        elif limit is not None:
            alike = history.declared(user, limit, spec.request.gpus)
            if alike is None:
                return limit, "limit"
            believed, source = _upper(alike), "declared habit"
        else:
            believed, source = default_s, "default"
    if limit is not None and limit < believed:
        return limit, "limit"
    return believed, source


def distribution(history: History, run: Run) -> Distribution:
    """How long this run may take in all, whatever is known."""
    spec = run.spec
    found = history.quantiles(run.user, spec)
    if found is not None and (spec.estimate_s is None or history.like(run.user, spec) is not None):
        return found
    if run.expected_from == "default":
        return guessed(run.expected_s)
    if run.expected_from == "limit" and spec.time_limit_s is not None:
        return bounded(spec.time_limit_s)
    return estimated(run.expected_s, spec.time_limit_s)


def relearn(history: History, run: Run) -> None:
    """Take in an ended run: all of its work, also what it did before it made way for others. Of one that failed or was
    cancelled only that it outlived its estimate, if it did."""
    spec = run.spec
    for past in run.past[-1:]:
        if past.exit.started_tick is None or past.exit.ended_tick is None:
            continue
        ran_s = run.attained_s + max(0.0, past.exit.ended_tick - past.exit.started_tick)
        if past.exit.ok:
            history.learn(run.user, spec, ran_s)
        if spec.estimate_s is not None and spec.time_limit_s is None and (past.exit.ok or ran_s > spec.estimate_s):
            history.learn_estimate(run.user, spec.estimate_s, ran_s)
