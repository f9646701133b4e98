"""Counts for dashboards and statistics, kept by listening: asking costs nothing, whatever the history holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from rota.app.ports import RunFilter, Store, StoreError
from rota.app.views import Window
from rota.core import events as e
from rota.core.run import ENDED, Run, RunState

RECENT = 1_000  # starts that the average wait is of
SEEDED_FROM = 200  # of the newest runs, at the start of a server
MINUTE_S, MINUTES = 60.0, 60
STEP_S, HOUR_STEPS = 600.0, 6  # in which the hour before the start is looked at
RECOUNT_S = 3600.0  # old runs are dropped behind our back, see retention


@dataclass(frozen=True, slots=True)
class Tally:
    counts: Mapping[RunState, int] = field(default_factory=lambda: dict.fromkeys(RunState, 0))  # archived runs aside
    average_wait_s: float = 0.0  # from submit to the first start, of the newest starts
    ended_last_hour: int = 0
    # since this server's start:
    scheduled: int = 0
    completed: int = 0
    failed: int = 0
    passes: int = 0
    last_pass_at: float | None = None


class Counter:
    """A subscriber of the loop. What it says is durable, since only that is told. Live runs are counted in the window;
    here are the ended ones, of which there may be millions."""

    def __init__(self, store: Store, window: Window, now: Callable[[], float]) -> None:
        self._store = store
        self._window = window
        self._now = now
        self._lock = Lock()
        self._ended: dict[RunState, int] = dict.fromkeys(ENDED, 0)
        self._archived: set[str] = set()  # live runs that are out of sight
        self._waits: deque[float] = deque(maxlen=RECENT)
        self._ends: deque[tuple[int, int]] = deque(maxlen=MINUTES + 1)  # (minute, how many ended in it)
        self._recount_at = 0.0
        self._begun: float | None = None  # when the first was heard
        self._remembered = False
        self._scheduled = self._completed = self._failed = 0

    def tally(self, passes: int, last_pass_at: float | None) -> Tally:
        with self._lock:
            if not self._remembered:
                self._remember()
            since = int(self._now() / MINUTE_S) - MINUTES
            return Tally(
                counts={**self._window.counts(), **self._ended},
                average_wait_s=sum(self._waits) / len(self._waits) if self._waits else 0.0,
                ended_last_hour=sum(count for minute, count in self._ends if minute > since),
                scheduled=self._scheduled,
                completed=self._completed,
                failed=self._failed,
                passes=passes,
                last_pass_at=last_pass_at,
            )

    # -- the loop's thread ------------------------------------------------------------------------------------------
    def hear(self, first: int, events: Sequence[e.Event]) -> None:
        about_runs = [event for event in events if isinstance(event, e.RunEvent)]
        with self._lock:
            if self._begun is None:
                self._begun = events[0].at
            for event in about_runs:
                self._note(event)
            # When a server starts or comes back from trouble something may have been stored that nobody was told of.
            if self._now() >= self._recount_at or any(isinstance(event, e.ServerStarted) for event in events):
                self._recount()
            else:
                self._count_ended(about_runs)

    def _note(self, event: e.RunEvent) -> None:
        if isinstance(event, e.AttemptPlanned):
            self._scheduled += 1
            run = self._window.run(event.run_id)
            if run is not None and run.attempts_made == 1:
                self._waits.append(max(0.0, event.at - run.submitted_at))
            return
        end = _end(event)
        if end is not None:
            self._completed += end is RunState.SUCCEEDED
            self._failed += end in (RunState.FAILED, RunState.LOST)
            minute = int(event.at / MINUTE_S)
            if self._ends and self._ends[-1][0] >= minute:
                last, count = self._ends.pop()
                self._ends.append((last, count + 1))
            else:
                self._ends.append((minute, 1))

    def _count_ended(self, events: Sequence[e.RunEvent]) -> None:
        ends = {event.run_id: n for n, event in enumerate(events) if _end(event) is not None}
        over: dict[str, RunState] = {}  # by now
        for n, event in enumerate(events):
            end = _end(event)
            if end is not None:
                over[event.run_id] = end
                if event.run_id not in self._archived:
                    self._ended[end] += 1
                self._archived.discard(event.run_id)
            elif isinstance(event, e.RunArchived):
                if self._window.run(event.run_id) is not None or ends.get(event.run_id, -1) > n:
                    (self._archived.add if event.archived else self._archived.discard)(event.run_id)
                else:
                    self._hide_ended(event, over.get(event.run_id))

    def _hide_ended(self, event: e.RunArchived, state: RunState | None) -> None:
        try:
            run = self._store.run(event.run_id) if state is None else None
        except StoreError:
            self._recount_at = 0.0  # count anew at the next event
            return
        state = run.state if run is not None else state
        if state is not None:
            self._ended[state] += -1 if event.archived else 1

    def _recount(self) -> None:
        try:
            counts = self._store.counts()
        except StoreError:  # try again at the next event
            self._recount_at = 0.0
            return
        self._ended = {state: counts.get(state, 0) for state in ENDED}
        self._archived = {run.id for run in self._window.runs.values() if run.archived_at is not None}
        self._recount_at = self._now() + RECOUNT_S

    def _remember(self) -> None:
        """What the servers before this one saw, so that a restart does not wipe the figures out. Looked up when
        somebody asks: a start should not wait for it."""
        until = self._begun
        if until is None:
            return
        try:
            newest = self._store.runs(RunFilter(limit=SEEDED_FROM))
            steps = [until - n * STEP_S for n in range(HOUR_STEPS)]
            ended = [(at, self._store.totals(at - STEP_S, at)) for at in steps]
        except StoreError:  # at the next question
            return
        self._remembered = True
        waits = [wait for run in newest for wait in _wait(run, until)]
        self._waits.extendleft(waits[: RECENT - len(self._waits)])
        for at, totals in ended:
            if totals and len(self._ends) <= MINUTES:
                self._ends.appendleft((int(at / MINUTE_S), sum(total.attempts for total in totals)))


def _end(event: e.RunEvent) -> RunState | None:
    """The state it ended in, if this was its end."""
    if isinstance(event, e.RunEnded):
        return event.state
    if isinstance(event, e.AttemptEnded) and event.next in ENDED:
        return event.next
    return None


def _wait(run: Run, until: float) -> Iterator[float]:
    """How long it waited for its first start, if that was before this time."""
    firsts = [past.planned_at for past in run.past if past.number == 1]
    if run.attempt is not None and run.attempt.number == 1:
        firsts.append(run.attempt.planned_at)
    if firsts and firsts[0] < until:
        yield max(0.0, firsts[0] - run.submitted_at)
