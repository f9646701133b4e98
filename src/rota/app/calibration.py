"""Were the foretold starts right? What was told is kept, scored when the run has started, and corrects the next.

SLOTS predictions are small records that are written over: they outlive a restart, and never grow. The next one takes
the place of the oldest of the person with the most, so that nobody's are driven out by another's. Scores need nobody to
listen: whether a run has started, and when, is read off the run itself when somebody asks.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
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
OFTEN_S = 1.0  # between two of a person that are kept
NOW_S = 1.0
PEOPLE = 1000  # whose last one is remembered for that
RUNS = 1000  # ended runs whose expected time is held against their own


@dataclass(frozen=True, slots=True)
class Noted:
    """What was told of the next attempt of a run, and under which terms."""

    number: int  # counts all there ever were
    run_id: str
    attempt: int  # the one it was told of
    priority: int
    gpus: int
    at: float
    foretold: Foretold
    waited_s: float | None = None  # once it has started
    user: str = ""  # whose run it is; "" = not known: noted by an older version, and the run is gone
    cap: int | None = None  # of its sweep, at that moment


@dataclass(frozen=True, slots=True)
class Calibration:
    """The figures for people."""

    starts: tuple[Row, ...]  # all together first
    runtimes: tuple[RunRow, ...]
    pending: int  # predictions whose run still waits


class Calibrator:
    """`caps`: those of sweeps, by now."""

    def __init__(
        self,
        store: Store,
        live: Callable[[str], Run | None],
        put: Callable[[Draft], None],
        caps: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._store, self._live, self._put, self._caps = store, live, put, caps
        self._lock = Lock()
        self._slots: dict[int, Noted] | None = None  # None = not read yet: a start should not wait for it
        self._waiting: dict[str, int] = {}  # run -> its slot
        self._next = 0
        self._noted_at: dict[str, float] = {}  # person -> when
        self._people: set[str] = set()  # who has predictions that were scored; together with the next
        self._corrections: dict[str, Correction] = {}  # "" = of all who have none
        self._ended_lock = Lock()  # one reader of runs at a time: a run may take megabytes
        self._ended: dict[str, tuple[Ran, ...]] = {}  # of the newest runs that ended well, which change no more

    def tell(self, run: Run, at: float, odds: Odds, *, eta: float | None = None, by_room: bool = True) -> Odds:
        """The odds as they are to be told, corrected by how the last ones did; and a note of them. `eta`: when it
        starts if every run takes what is believed of it. `by_room`: it waits for room, and not for what its own person
        decides; only then it counts."""
        if odds.p50 is None or odds.p90 is None or odds.p50 - at < NOW_S:
            return odds
        with self._lock:
            self._read()
            expected_s = 0.0 if eta is None else eta - at
            foretold = self._correction(run.user).corrected(
                odds.p50 - at, odds.p90 - at, least_s=odds.least - at, expected_s=expected_s
            )
            counts = by_room and run.spec.request.gpus > 0 and run.id not in self._waiting
            if counts and self._is_time(run.user, at):
                self._note(run, at, foretold)
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
                self._judge(slot, slots[slot], self._live(run_id) or self._store.run(run_id))

    def figures(self) -> Calibration:
        self.settle()
        runs = self._newest_ended()
        with self._lock:
            return Calibration(sheet(list(_scored(self._read()))), run_sheet(runs), len(self._waiting))

    def _newest_ended(self) -> list[Ran]:
        """Read each run once, and one after the other: a thousand of them may take hundreds of megabytes."""
        with self._ended_lock:
            ids = self._store.run_ids(RunFilter(states=frozenset({RunState.SUCCEEDED}), limit=RUNS))
            known, self._ended = self._ended, {}
            for run_id in ids:
                found = known.get(run_id)
                if found is None:
                    run = self._store.run(run_id)
                    found = () if run is None else tuple(ran(run))
                self._ended[run_id] = found
            return [one for found in self._ended.values() for one in found]

    def _correction(self, user: str) -> Correction:
        if not self._corrections:
            self._people = {noted.user for noted in self._read().values() if noted.waited_s is not None}
        key = user if user in self._people else ""
        if key not in self._corrections:
            self._corrections[key] = Correction(_scored(self._read()), user)
        return self._corrections[key]

    def _is_time(self, user: str, at: float) -> bool:
        if at - self._noted_at.get(user, -math.inf) < OFTEN_S:
            return False
        if len(self._noted_at) >= PEOPLE:
            self._noted_at.clear()
        self._noted_at[user] = at
        return True

    def _note(self, run: Run, at: float, foretold: Foretold) -> None:
        cap = self._caps().get(run.spec.group)
        noted = Noted(
            self._next,
            run.id,
            run.attempts_made + 1,
            run.priority,
            run.spec.request.gpus,
            at,
            foretold,
            user=run.user,
            cap=cap,
        )
        self._next += 1
        slot = self._free_slot(run.user)
        self._waiting[run.id] = slot
        self._keep(slot, noted)

    def _free_slot(self, user: str) -> int:
        """Return a free slot, or that of the oldest prediction of the person who has the most with the one to come."""
        slots = self._read()
        if len(slots) < SLOTS:
            return next(slot for slot in range(SLOTS) if slot not in slots)
        ((most, _),) = Counter([*(noted.user for noted in slots.values()), user]).most_common(1)
        slot = min((noted.number, slot) for slot, noted in slots.items() if noted.user == most)[1]
        gone = slots[slot]
        if gone.waited_s is None:
            self._waiting.pop(gone.run_id, None)
        else:
            self._corrections.clear()
        return slot

    def _judge(self, slot: int, noted: Noted, run: Run | None) -> None:
        start = None if run is None else _planned_at(run, noted.attempt)
        if run is None or _changed(noted, run, self._caps()):
            self._drop(slot, noted)
        elif start is not None:
            del self._waiting[noted.run_id]
            self._corrections.clear()
            self._keep(slot, replace(noted, waited_s=max(0.0, start - noted.at)))
        elif run.ended_at is not None:
            self._drop(slot, noted)

    def _keep(self, slot: int, noted: Noted) -> None:
        self._read()[slot] = noted
        self._put(Draft(KIND, f"{slot:04}", json.dumps(asdict(noted))))

    def _drop(self, slot: int, noted: Noted) -> None:
        self._read().pop(slot, None)
        self._waiting.pop(noted.run_id, None)
        self._put(Draft(KIND, f"{slot:04}", ""))

    def _read(self) -> dict[int, Noted]:
        """Of the servers before this one; under the lock."""
        if self._slots is None:
            found = {}
            for record in self._store.records(KIND, limit=SLOTS):
                noted = _noted(record.body)
                if noted is not None and record.id.isdecimal():
                    found[int(record.id)] = noted if noted.user else self._with_user(noted)
            self._slots = found
            self._waiting = {noted.run_id: slot for slot, noted in found.items() if noted.waited_s is None}
            self._next = max((noted.number for noted in found.values()), default=-1) + 1
        return self._slots

    def _with_user(self, noted: Noted) -> Noted:
        """Of an older version, which did not note whose run it was."""
        run = self._store.run(noted.run_id)
        return noted if run is None else replace(noted, user=run.user)


def _scored(slots: Mapping[int, Noted]) -> Iterator[Scored]:
    """Oldest first."""
    for noted in sorted(slots.values(), key=lambda noted: noted.number):
        if noted.waited_s is not None:
            yield Scored(noted.foretold, noted.waited_s, noted.user)


def _changed(noted: Noted, run: Run, caps: Mapping[str, int]) -> bool:
    """Somebody made another run of it since: held it, moved it, cut it down, let it wait for others or for a cap."""
    held = run.state is RunState.HELD or (run.queued_at is not None and run.queued_at > noted.at)
    bound = run.ended_at is None and (bool(run.waiting_on) or caps.get(run.spec.group) != noted.cap)
    return held or bound or run.priority != noted.priority or run.spec.request.gpus != noted.gpus


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
