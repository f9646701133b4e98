"""Were the foretold starts right? What was told is kept, scored when the run has started, and corrects the next.

The newest SLOTS predictions are small records that are written over in turn: they outlive a restart, and never grow.
Scores need nobody to listen: whether a run has started, and when, is read off the run itself when somebody asks.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from threading import Lock
from typing import Any

from rota.app.commands import Draft
from rota.app.ports import RunFilter, Store
from rota.core.calibrate import Correction, Foretold, Row, Scored, sheet
from rota.core.odds import Odds
from rota.core.run import Run, RunState
from rota.core.runtimes import Ran, RunRow, ran, run_sheet

log = logging.getLogger(__name__)

KIND = "foretold"
SLOTS = 2000
OFTEN_S = 1.0  # between two that are kept: who polls does not fill the ring
NOW_S = 1.0
RUNS = 1000  # ended runs whose expected time is held against their own


@dataclass(frozen=True, slots=True)
class Noted:
    """What was told of the next attempt of a run, and under which terms."""

    number: int  # counts all there ever were; its slot is the rest of dividing by SLOTS
    run_id: str
    attempt: int  # the one it was told of
    priority: int
    gpus: int
    at: float
    foretold: Foretold
    waited_s: float | None = None  # once it has started


@dataclass(frozen=True, slots=True)
class Calibration:
    """The figures for people."""

    starts: tuple[Row, ...]  # all together first
    runtimes: tuple[RunRow, ...]
    pending: int  # predictions whose run still waits


class Calibrator:
    def __init__(self, store: Store, live: Callable[[str], Run | None], put: Callable[[Draft], None]) -> None:
        self._store, self._live, self._put = store, live, put
        self._lock = Lock()
        self._slots: dict[int, Noted] | None = None  # None = not read yet: a start should not wait for it
        self._waiting: dict[str, int] = {}  # run -> its slot
        self._next = 0
        self._noted_at = -math.inf
        self._correction: Correction | None = None

    def tell(self, run: Run, at: float, odds: Odds) -> Odds:
        """The odds as they are to be told, corrected by how the last ones did; and a note of them."""
        if odds.p50 is None or odds.p90 is None or odds.p50 - at < NOW_S:
            return odds
        with self._lock:
            slots = self._read()
            if self._correction is None:
                self._correction = Correction(_scored(slots))
            foretold = self._correction.corrected(odds.p50 - at, odds.p90 - at, odds.least - at)
            if run.id not in self._waiting and at - self._noted_at >= OFTEN_S:
                self._noted_at = at
                attempt = run.attempts_made + 1
                self._keep(Noted(self._next, run.id, attempt, run.priority, run.spec.request.gpus, at, foretold))
                self._next += 1
        return replace(odds, p50=at + foretold.told50_s, p90=at + foretold.told90_s)

    def known(self, run_id: str) -> bool:
        """Something was told of it, and has not come true yet."""
        with self._lock:
            self._read()
            return run_id in self._waiting

    def settle(self) -> None:
        """Score what has started, and forget what will not start as it was."""
        with self._lock:
            slots = self._read()
            for run_id, slot in list(self._waiting.items()):
                self._judge(slots[slot], self._live(run_id) or self._store.run(run_id))

    def figures(self) -> Calibration:
        self.settle()
        ended = self._store.runs(RunFilter(states=frozenset({RunState.SUCCEEDED}), limit=RUNS))
        runs: list[Ran] = [one for run in ended for one in ran(run)]
        with self._lock:
            return Calibration(sheet(list(_scored(self._read()))), run_sheet(runs), len(self._waiting))

    def _judge(self, noted: Noted, run: Run | None) -> None:
        if run is None or _changed(noted, run):
            self._drop(noted)
            return
        start = _planned_at(run, noted.attempt)
        if start is not None:
            self._keep(replace(noted, waited_s=max(0.0, start - noted.at)))
        elif run.ended_at is not None:
            self._drop(noted)

    def _keep(self, noted: Noted) -> None:
        slots = self._read()
        slot = noted.number % SLOTS
        if slot in slots:
            self._waiting.pop(slots[slot].run_id, None)
        slots[slot] = noted
        if noted.waited_s is None:
            self._waiting[noted.run_id] = slot
        else:
            self._correction = None
        self._put(Draft(KIND, f"{slot:04}", json.dumps(asdict(noted))))

    def _drop(self, noted: Noted) -> None:
        slot = noted.number % SLOTS
        self._read().pop(slot, None)
        self._waiting.pop(noted.run_id, None)
        self._put(Draft(KIND, f"{slot:04}", ""))

    def _read(self) -> dict[int, Noted]:
        """Of the servers before this one; under the lock."""
        if self._slots is None:
            found = {}
            for record in self._store.records(KIND, limit=SLOTS):
                noted = _noted(record.body)
                if noted is not None:
                    found[noted.number % SLOTS] = noted
            self._slots = found
            self._waiting = {noted.run_id: slot for slot, noted in found.items() if noted.waited_s is None}
            self._next = max((noted.number for noted in found.values()), default=-1) + 1
        return self._slots


def _scored(slots: Mapping[int, Noted]) -> Iterator[Scored]:
    for noted in slots.values():
        if noted.waited_s is not None:
            yield Scored(noted.foretold, noted.waited_s)


def _changed(noted: Noted, run: Run) -> bool:
    """Somebody made another run of it since: held it, moved it, cut it down."""
    held = run.state is RunState.HELD or (run.queued_at is not None and run.queued_at > noted.at)
    return held or run.priority != noted.priority or run.spec.request.gpus != noted.gpus


def _planned_at(run: Run, attempt: int) -> float | None:
    for one in (run.attempt, *run.past):
        if one is not None and one.number == attempt:
            return one.planned_at
    return None


def _noted(body: Mapping[str, Any]) -> Noted | None:
    """None = another version's, or somebody else's: it is written over in its turn."""
    try:
        foretold = Foretold(**body["foretold"])
        return Noted(**{**body, "foretold": foretold})
    except (KeyError, TypeError) as error:
        log.info("a prediction cannot be read: %r", error)
        return None
