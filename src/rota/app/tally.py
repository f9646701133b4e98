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
MOST_NOTES = 10_000  # if nobody asks for so long, it is counted anew
RECOUNT_S = 3600.0  # old runs are dropped behind our back, see retention


@dataclass(frozen=True, slots=True)
class Tally:
    counts: Mapping[RunState, int] = field(default_factory=lambda: dict.fromkeys(RunState, 0))  # archived runs aside
    elsewhere: int = 0  # of these, active ones that are only reported
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
    here are the ended ones, of which there may be millions.

    The loop's thread only takes notes. What has to be read from the store is read by whoever asks, and not under the
    lock the loop needs: so nothing waits for a count but those who want to know it."""

    def __init__(self, store: Store, window: Window, now: Callable[[], float]) -> None:
        self._store = store
        self._window = window
        self._now = now
        self._lock = Lock()
        self._reading = Lock()  # held by the one who reads; never by the loop
        self._ended: dict[RunState, int] = dict.fromkeys(ENDED, 0)
        self._notes: deque[_Note] = deque()  # heard since `_ended` was made up
        self._counted_at = 0  # the seq up to which `_ended` is true
        self._stale = True  # count anew
        self._recount_at = 0.0
        self._archived: set[str] = set()  # live runs that are out of sight
        self._waits: deque[float] = deque(maxlen=RECENT)
        self._ends: deque[tuple[int, int]] = deque(maxlen=MINUTES + 1)  # (minute, how many ended in it)
        self._begun: float | None = None  # when the first was heard
        self._remembered = False
        self._scheduled = self._completed = self._failed = 0

    # -- who asks -----------------------------------------------------------------------------------------------------
    def tally(self, passes: int, last_pass_at: float | None) -> Tally:
        """Reads the store now and then: not for the loop's thread, nor for one that must not wait."""
        if self._reading.acquire(blocking=not self._recount_at):  # else the numbers of a moment ago will do
            try:
                self._read()
            finally:
                self._reading.release()
        with self._lock:
            since = int(self._now() / MINUTE_S) - MINUTES
            return Tally(
                counts={**self._window.counts(), **self._sum()},
                elsewhere=self._window.elsewhere(),
                average_wait_s=sum(self._waits) / len(self._waits) if self._waits else 0.0,
                ended_last_hour=sum(count for minute, count in self._ends if minute > since),
                scheduled=self._scheduled,
                completed=self._completed,
                failed=self._failed,
                passes=passes,
                last_pass_at=last_pass_at,
            )

    def _sum(self) -> dict[RunState, int]:
        """What was counted, with what was noted since."""
        found = dict(self._ended)
        for note in self._notes:
            if note.state is not None:
                found[note.state] += note.change
        return found

    def _read(self) -> None:
        if not self._remembered:
            self._remember()
        if self._stale or self._now() >= self._recount_at:
            self._recount()
        self._look_up()

    def _recount(self) -> None:
        with self._lock:
            self._stale = False  # unless something is heard meanwhile that makes it so
        try:
            counts, seq = self._store.counted()
        except StoreError:  # at the next question
            self._stale = True
            return
        with self._lock:
            self._ended = {state: counts.get(state, 0) for state in ENDED}
            self._counted_at = seq
            self._notes = deque(note for note in self._notes if note.seq > seq)
        self._recount_at = self._now() + RECOUNT_S

    def _look_up(self) -> None:
        """Make up the notes. Runs that ended long ago and were put out of sight, or back: in which state?"""
        with self._lock:
            unknown = {note for note in self._notes if note.state is None}
        try:
            found = [(note, self._store.run(note.run_id)) for note in unknown]
        except StoreError:
            return
        with self._lock:
            self._ended = self._sum()  # only here, where nobody else counts
            for note, run in found:
                if run is not None:  # else it has gone since, and the next recount leaves it out
                    self._ended[run.state] += note.change
            self._notes = deque(note for note in self._notes if note.state is None and note not in unknown)

    def _remember(self) -> None:
        """What the servers before this one saw, so that a restart does not wipe the figures out. Looked up when
        somebody asks: a start should not wait for it."""
        until = self._begun
        if until is None:
            return
        try:
            newest, _ = self._store.runs_page(RunFilter(limit=SEEDED_FROM))
            steps = [until - n * STEP_S for n in range(HOUR_STEPS)]
            ended = [(at, self._store.totals(at - STEP_S, at)) for at in steps]
        except StoreError:  # at the next question
            return
        self._remembered = True
        waits = [wait for run in newest for wait in _wait(run, until)]
        with self._lock:
            self._waits.extendleft(waits[: RECENT - len(self._waits)])
            for at, totals in ended:
                if totals and len(self._ends) <= MINUTES:
                    self._ends.appendleft((int(at / MINUTE_S), sum(total.attempts for total in totals)))

    # -- the loop's thread ------------------------------------------------------------------------------------------
    def hear(self, first: int, events: Sequence[e.Event]) -> None:
        with self._lock:
            if self._begun is None:
                self._begun = events[0].at
            about_runs = [(seq, event) for seq, event in enumerate(events, first) if isinstance(event, e.RunEvent)]
            for _, event in about_runs:
                self._note(event)
            # When a server starts or comes back from trouble something may have been stored that nobody was told of.
            if any(isinstance(event, e.ServerStarted) for event in events) or len(self._notes) > MOST_NOTES:
                self._stale = True
                self._notes.clear()
                self._archived = set(self._window.archived)
            else:
                self._note_ends(about_runs)

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

    def _note_ends(self, events: Sequence[tuple[int, e.RunEvent]]) -> None:
        ends = {event.run_id: seq for seq, event in events if _end(event) is not None}
        over: dict[str, RunState] = {}  # by now
        for seq, event in events:
            end = _end(event)
            if end is not None:
                over[event.run_id] = end
                if event.run_id not in self._archived:
                    self._change(seq, event.run_id, end, 1)
                self._archived.discard(event.run_id)
            elif isinstance(event, e.RunArchived):
                if self._window.run(event.run_id) is not None or ends.get(event.run_id, 0) > seq:
                    (self._archived.add if event.archived else self._archived.discard)(event.run_id)
                else:
                    self._change(seq, event.run_id, over.get(event.run_id), -1 if event.archived else 1)

    def _change(self, seq: int, run_id: str, state: RunState | None, change: int) -> None:
        if seq > self._counted_at:  # else it was counted before it was heard of
            self._notes.append(_Note(seq, run_id, state, change))


@dataclass(frozen=True, slots=True)
class _Note:
    """One more ended run, or one less, is in sight."""

    seq: int
    run_id: str
    state: RunState | None  # None = it ended long ago; look it up
    change: int


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
