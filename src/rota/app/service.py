"""The front of the house: commands go in, answers and views come out. Doors talk to this and to nothing behind it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from threading import Lock
from typing import Any, TypeVar

from rota.app import commands as c
from rota.app import control, edit, endlease, operate, records, report, reserve, submit, sweeps
from rota.app.accounts import Accounts
from rota.app.authz import Principal, Role
from rota.app.calibration import Calibration, Calibrator
from rota.app.checkpoint_dirs import CheckpointDirs
from rota.app.desk import Answer, Desk
from rota.app.disk_use import DiskUse
from rota.app.errors import NoSpace, NotFound, Refused, Unavailable
from rota.app.loop import Loop, Subscriber
from rota.app.outlook import Outlook, Prospect
from rota.app.ports import PAGE_BYTES, LogChunk, Record, RunFilter, StoredEvent, StoreError, UserTotal
from rota.app.sampler import Sampler
from rota.app.tally import Counter, Tally
from rota.app.trials import Trials
from rota.app.views import View
from rota.core import events as e
from rota.core.alternatives import Alternative
from rota.core.explain import Explanation
from rota.core.ids import attempt_id, is_attempt_id
from rota.core.node import Node
from rota.core.policy import Policy
from rota.core.reason import Reason
from rota.core.reservation import Reservation
from rota.core.run import ENDED, PastAttempt, Run
from rota.core.state import State
from rota.core.suggest import Suggestion, suggest

T = TypeVar("T")
log = logging.getLogger(__name__)

HOUSE = Principal("rota", Role.ADMIN)
LARGE = 200  # runs made by one command that take a turn of their own: about 20 ms of the writer's time

# Ends and what leads to them: taken in whatever budget is spent and however little space is left. A report that is no
# end is refused by its handler, which alone knows what the run is.
FREEING: frozenset[type[Any]] = frozenset(
    {c.Cancel, c.CancelGroup, c.CancelReservation, c.EndLease, c.Report, c.Withdraw}
)
# An admin's switches take a few bytes and may be what makes room.
SWITCHES: frozenset[type[Any]] = frozenset({c.Pause, c.Resume, c.Drain, c.Undrain, c.SetPolicy})

HANDLERS: dict[type[Any], Callable[[Desk, Principal, Any], Any]] = {
    c.Submit: submit.submit,
    c.SubmitMany: submit.submit_many,
    c.Rerun: submit.rerun,
    c.Edit: edit.edit,
    c.Archive: edit.archive,
    c.Report: report.report,
    c.EndLease: endlease.end_lease,
    c.Withdraw: endlease.withdraw,
    c.CapGroup: sweeps.cap_group,
    c.StartGroup: sweeps.start_group,
    c.Reserve: reserve.reserve,
    c.CancelReservation: reserve.cancel_reservation,
    c.PutRecord: records.put_record,
    c.Cancel: control.cancel,
    c.CancelGroup: sweeps.cancel_group,
    c.Hold: control.hold,
    c.Release: control.release,
    c.Reprioritise: control.reprioritise,
    c.SetPolicy: operate.set_policy,
    c.Pause: operate.pause,
    c.Resume: operate.resume,
    c.Drain: operate.drain,
    c.Undrain: operate.undrain,
    c.Reshape: operate.reshape,
}


def _admit(desk: Desk, who: Principal, command: c.Command) -> None:
    """Refuse what would write more than there is room or budget for."""
    kind = type(command)
    if kind in FREEING:
        return
    desk.budget.must_fit_ledger(who, desk.now)
    if desk.shortage and kind not in SWITCHES and not _removes_or_revokes(command):
        desk.must_have_space()


def _removes_or_revokes(command: c.Command) -> bool:
    return isinstance(command, c.PutRecord) and (command.draft.kind == records.TOKEN or not command.draft.body)


class Service:
    def __init__(self, loop: Loop, metrics: DiskUse | None = None) -> None:
        self._loop = loop
        self._metrics = metrics
        self._waiters: dict[str, list[Future[Run]]] = {}
        self._lock = Lock()
        self.broken: list[BaseException] = []  # why the loop has stopped
        self._trials = Trials(loop.call)
        self._counter = Counter(loop.store, loop.window, loop.now)
        self._outlook = Outlook(lambda: loop.window.version, loop.now, lambda: self.ask(self._copied), loop.window.run)
        self._calibrator = Calibrator(loop.store, loop.window.run, self._put_away, self.caps)
        self._sampler = Sampler(self._foretell, lambda: loop.state.waiting)
        loop.subscribers += [self._tell_waiters, self._counter.hear, self._sampler.hear]

    # -- commands ---------------------------------------------------------------------------------------------------
    def send(self, who: Principal, command: c.Command) -> Future[Any]:
        """The future is answered when the command is durable, or raises Refused."""
        future: Future[Any] = Future()
        self.post(who, command, future)
        return future

    def post(self, who: Principal, command: c.Command, answer: Answer) -> None:
        """As send(), for who has a place for the answer already."""
        handler = HANDLERS[type(command)]

        def work(desk: Desk) -> Any:
            _admit(desk, who, command)
            first, weight = len(desk.events), desk.state.weights.of(who.owner)
            done = handler(desk, who, command)
            desk.budget.charge(who, desk.events[first:], desk.state.weights.of(who.owner) - weight, desk.now)
            return done

        many = isinstance(command, c.SubmitMany) and len(command.submits) >= LARGE
        # how many runs a group has is known to the writer alone
        self._loop.post(work, answer, large=many or isinstance(command, (c.StartGroup, c.CancelGroup)))

    def try_out(self, who: Principal, command: c.Command) -> Any:
        """Return what the command would answer, or raise the refusal it would meet. Nothing is written. It is worked on
        in the caller's thread, and may take as long as the command itself would."""
        desk = self._trials.desk()
        try:
            _admit(desk, who, command)
            return HANDLERS[type(command)](desk, who, command)
        except StoreError as error:
            raise Unavailable(f"the store does not answer: {error}; send it again") from error

    def do(self, who: Principal, command: c.Command, timeout_s: float | None = 30.0) -> Any:
        return self.send(who, command).result(timeout_s)

    def see_nodes(self, nodes: Sequence[Node]) -> None:
        self._loop.call(lambda desk: operate.see_nodes(desk, nodes)).result()

    # -- looking ------------------------------------------------------------------------------------------------------
    def ask(self, question: Callable[[State, float], T]) -> T:
        """An answer from the state between two turns of the loop, when nothing moves."""
        future: Future[T] = self._loop.call(lambda desk: question(desk.state, desk.now))
        return future.result()

    def run(self, run_id: str) -> Run:
        run = self._loop.window.run(run_id) or self._loop.store.run(run_id)
        if run is None:
            raise NotFound(f"no run {run_id[:50]!r}", "run_id")
        return run

    def runs(self, which: RunFilter) -> Sequence[Run]:
        return self._loop.store.runs(which)

    def runs_page(self, which: RunFilter, most_bytes: int = PAGE_BYTES) -> tuple[Sequence[Run], bool]:
        return self._loop.store.runs_page(which, most_bytes)

    def view(self) -> View:
        """Live runs, nodes and switches at one moment, from any thread and at little cost."""
        return self._loop.window.view()

    def position(self, run_id: str) -> int | None:
        """Its place in the queue, 1 = next, without the cost of a view; None = it does not stand there."""
        return self._loop.window.position(run_id)

    def place_of(self, run: Run) -> int | None:
        """The place a run would have in the queue as it is, were it there."""
        return self._loop.window.place_of(run)

    def nodes(self) -> Mapping[str, Node]:
        """Those of the view, without its cost."""
        return self._loop.window.nodes

    def policy(self) -> Policy:
        """As above."""
        return self._loop.window.policy

    def caps(self) -> Mapping[str, int]:
        """As above."""
        return self._loop.window.caps

    def enforced(self) -> Collection[str] | None:
        """Which limits hold for a run: "memory", "cpu", "pids". None = the backend has not said yet."""
        return self._loop.backend.enforced()

    def reservations(self) -> tuple[Reservation, ...]:
        """As above, by start."""
        return self._loop.window.reservations

    def now(self) -> float:
        """The house's time, in which all that happens is dated."""
        return self._loop.now()

    def tally(self) -> Tally:
        return self._counter.tally(self._loop.passes, self._loop.last_pass_at)

    def attempts(self, run_id: str) -> Sequence[PastAttempt]:
        """All that have ended, oldest first; the live one is the run's own."""
        return self._loop.store.attempts(run_id)

    def events(self, after: int, limit: int, run_id: str | None = None) -> Sequence[StoredEvent]:
        return self._loop.store.events(after, limit, run_id)

    def record(self, kind: str, record_id: str) -> Record | None:
        return self._loop.store.record(kind, record_id)

    def records(
        self,
        kind: str,
        *,
        parent: str | None = None,
        before: int | None = None,
        limit: int = 100,
        most_bytes: int | None = None,
    ) -> Sequence[Record]:
        """Newest first; `before` is the seq of the last one seen; the last one makes it `most_bytes` of text."""
        return self._loop.store.records(kind, parent=parent, before=before, limit=limit, most_bytes=most_bytes)

    def totals(self, since: float, until: float) -> Sequence[UserTotal]:
        return self._loop.store.totals(since, until)

    def explain(self, run_id: str) -> Explanation:
        run, found = self.run(run_id), self._outlook.explain(run_id)
        if run.attempt is not None:
            stalled = self.stalled_by(run)
            return replace(found, reasons=(*found.reasons, Reason("stalled", stalled))) if stalled else found
        if not self._loop.shortage or not found.reasons:
            return found
        others = (reason for reason in found.reasons if reason.code != "paused" or self._loop.window.paused)
        return replace(found, reasons=(Reason("disk", self._loop.shortage), *others))

    def stalled_by(self, run: Run) -> str:
        """Return what keeps the live attempt from starting or ending, in words; "" = nothing that can be seen."""
        live = run.attempt is not None and not run.attempt.reported
        return self._loop.backend.stalled_by(run.attempt.id) if live and run.attempt is not None else ""

    def eta(self, run_id: str) -> float | None:
        """When it is expected to start; None = nothing that is known will start it."""
        return self._outlook.eta(run_id)

    def latest(self, run_id: str) -> float | None:
        """When it starts if everybody uses all of their time; None = that has no end."""
        return self._outlook.latest(run_id)

    def prospect(self, run_id: str) -> Prospect:
        """When it will start and how sure that is, corrected by how earlier predictions did; this one is kept, too."""
        found = self._outlook.prospect(run_id)
        eta = None if found.odds.p90 is None else self._outlook.eta(run_id)
        told = self._calibrator.tell(self.run(run_id), found.at, found.odds, eta=eta, by_room=found.by_room)
        return replace(found, odds=told)

    def alternatives(self, run_id: str) -> tuple[Alternative, ...]:
        """What would start it sooner, best first."""
        return self._outlook.alternatives(run_id)

    def calibration(self) -> Calibration:
        """How predictions did so far."""
        return self._calibrator.figures()

    def suggest(self, run: Run) -> Suggestion | None:
        """The time limit its past suggests. Read beside the loop: see History."""
        return suggest(self._loop.state.history, run.user, run.spec)

    def sample(self) -> None:
        """Now and then: score what has started, and foretell one that has just come."""
        self._calibrator.settle()
        self._sampler.take()

    def _copied(self, state: State, now: float) -> tuple[State, float]:
        """To think on, with what is known of the past: that is shared, and only read."""
        twin = state.fork()
        twin.history = state.history
        if self._loop.shortage and not state.paused:  # nothing starts: no start is foretold
            twin.paused, twin.pause_why = True, self._loop.shortage
        return twin, now

    def _foretell(self, run_id: str) -> None:
        run = self._loop.window.run(run_id)
        if run is not None and run.attempt is None:
            self.prospect(run_id)

    def _put_away(self, draft: c.Draft) -> None:
        self.send(HOUSE, c.PutRecord(draft)).add_done_callback(_told_of)

    def log(self, run_id: str, offset: int = 0, limit: int = 65536, attempt: int | None = None) -> LogChunk:
        run = self.run(run_id)
        number = run.attempts_made if attempt is None else attempt
        if attempt is not None and not is_attempt_id(attempt_id(run_id, attempt)):
            raise NotFound(f"run {run_id} has no attempt {attempt}; they are numbered from 1", "attempt")
        if number == 0:
            return LogChunk(b"", 0, 0)
        return self._loop.backend.read_log(attempt_id(run_id, number), offset, limit)

    @property
    def checkpoints(self) -> CheckpointDirs:
        """Where each run keeps what it saves."""
        return self._loop.site.checkpoints

    @property
    def accounts(self) -> Accounts:
        """Who runs as whom here."""
        return self._loop.site.accounts

    def trouble(self) -> str:
        """Why nothing can be taken in just now; "" = all is well."""
        if self.broken:
            return f"the loop has stopped: {self.broken[0]}"
        return self._loop.degraded or self._loop.shortage

    def warnings(self) -> tuple[str, ...]:
        """Return what is odd about this server although it takes in work."""
        return (self._loop.clock_warning,) if self._loop.clock_warning else ()

    def must_take_metrics(self, who: Principal, run: Run) -> None:
        """Refuse metrics without room or over the quota of the run's person. From any thread; looks at the free space
        anew, since the loop may have had nothing to do."""
        shortage = self._loop.space.shortage() if self._loop.space is not None else ""
        if shortage:
            raise NoSpace(shortage)
        if self._metrics is not None:
            self._metrics.must_fit(who, run.user)

    def took_metrics(self, run: Run, size: int) -> None:
        """The metrics of this run use so many bytes now."""
        if self._metrics is not None:
            self._metrics.note(run.id, run.user, size)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Be told of every durable event, in order, on the loop's thread: return at once."""
        self._loop.subscribers.append(subscriber)

    def wait(self, run_id: str, timeout_s: float | None = None) -> Run:
        """Block until the run has ended."""
        future: Future[Run] = Future()

        def enlist(desk: Desk) -> None:
            run = desk.any(run_id)
            if run.state in ENDED and run_id not in desk.state.runs:
                future.set_result(run)
            else:
                with self._lock:
                    self._waiters.setdefault(run_id, []).append(future)

        try:
            self._loop.call(enlist).result(timeout_s)
            return future.result(timeout_s)
        finally:
            self._strike(run_id, future)

    def _strike(self, run_id: str, future: Future[Run]) -> None:
        """Whoever gave up waiting must not be remembered for as long as the run lives."""
        with self._lock:
            waiting = self._waiters.get(run_id, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._waiters.pop(run_id, None)

    def abandon(self, error: BaseException) -> None:
        """The loop has stopped: nobody will be told anything any more."""
        self.broken.append(error)
        with self._lock:
            futures = [future for waiting in self._waiters.values() for future in waiting]
            self._waiters.clear()
        for future in futures:
            future.set_exception(Unavailable(f"the server is stopping: {error}"))

    def _tell_waiters(self, first: int, events: Sequence[e.Event]) -> None:
        for event in events:
            if isinstance(event, e.RunEnded) or (isinstance(event, e.AttemptEnded) and event.next in ENDED):
                with self._lock:
                    futures = self._waiters.pop(event.run_id, [])
                if futures:
                    self._tell(event.run_id, futures)

    def _tell(self, run_id: str, futures: Sequence[Future[Run]]) -> None:
        try:
            run = self._loop.store.run(run_id)
        except StoreError as error:  # it has ended all the same: whoever asks again will see it
            for future in futures:
                future.set_exception(Unavailable(f"run {run_id} has ended, but cannot be read: {error}; ask again"))
            return
        assert run is not None
        for future in futures:
            future.set_result(run)


def _told_of(answer: Future[Any]) -> None:
    """A prediction that could not be kept is missing from a statistic, and from nothing else."""
    error = answer.exception()
    if isinstance(error, Refused):
        log.info("a prediction was not kept: %s", error)
    elif error is not None:
        log.error("a prediction was not kept: %r", error)
