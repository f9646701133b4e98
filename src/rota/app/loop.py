"""The one writer. A single thread takes what came in, decides, commits, and only then acts.

    take   whatever commands and reports have arrived; they share one commit
    handle each on the desk: refuse, or write events (reduced at once, not yet acknowledged)
    decide once for the whole batch, on the state as it is now; the plan becomes events of the same batch
    commit events and rows in one transaction: acknowledged = durable
    act    answer callers, launch, stop and forget attempts, tell subscribers

A crash before the commit loses only what nobody was told; a crash after it is made good by reconcile, since acting
twice is harmless. It is woken by what comes in and by timers, never by polling.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Condition, Thread
from typing import Any

from rota.app import dispatch, reconcile
from rota.app.budget import Budget
from rota.app.clock_check import clock_warning
from rota.app.desk import Answer, Desk, Item, NewId, Work
from rota.app.disk_use import DiskUse
from rota.app.envs import SharedEnvs
from rota.app.errors import Full, Refused, Unavailable
from rota.app.inbox import Inbox
from rota.app.ports import (
    Backend,
    Clock,
    Ended,
    Fenced,
    Report,
    Space,
    Store,
    StoreBroken,
    StoreBusy,
    StoreError,
    StoreFull,
)
from rota.app.reserve import expire
from rota.app.settle import settle
from rota.app.views import Window
from rota.core import events as e
from rota.core.decide import decide
from rota.core.grace import at_launch_s
from rota.core.ids import attempt_id
from rota.core.node import Node
from rota.core.preempt import request
from rota.core.run import ENDED
from rota.core.snapshot import snapshot
from rota.core.state import State

log = logging.getLogger(__name__)

Subscriber = Callable[[int, Sequence[e.Event]], None]  # seq of the first event, and the events

MAX_BATCH = 1000
MAX_INBOX = 50_000
RECONCILE_S = 10.0
RETRY_STORE_S = 1.0
SPACE_EVERY_S = 1.0  # how often the free space is looked at


class Loop:
    def __init__(
        self,
        store: Store,
        backend: Backend,
        *,
        clock: Clock,
        new_id: NewId,
        site: dispatch.Site,
        on_fatal: Callable[[BaseException], None],
        budget: Budget | None = None,
        space: Space | None = None,
        checkpoints: DiskUse | None = None,
    ) -> None:
        self.store = store
        self.backend = backend
        self.clock = clock
        self.new_id = new_id
        self.site = site
        self.on_fatal = on_fatal
        self.budget = budget or Budget()
        self.envs = SharedEnvs()
        self.space = space
        self.checkpoints = checkpoints  # what each person's take
        self.shortage = ""  # of space: why only ends are taken in just now
        self._space_at = 0.0  # when it is looked at next
        self._roomless = ""  # why the ledger has no room for a full disk, as it was logged
        self.state = State()
        self.kinds: dict[tuple[str, str], int] = {}  # how many records of each kind there are, see records
        self.subscribers: list[Subscriber] = []
        self.degraded = ""  # why nothing can be written just now
        self.window = Window()  # what other threads may see: nothing that is not on disk
        self._astray = False  # memory may be ahead of the store
        self._inbox: Inbox[Item | Report] = Inbox()
        self._waker = Condition()
        self._closing = False
        self._decided = -1  # the version the last pass saw
        self._woken = 0  # and how many had come out of their back-off
        self._look_again_at: float | None = None  # when it wanted to be asked again, though nothing happens
        self._edge: float | None = None  # when a reservation begins or ends next, as the last pass saw it
        self._begun = (0.0, 0.0)  # the house's time and the tick at the start
        self.clock_warning = ""  # that the last record was in the future at the start
        self.rounds = 0  # of the periodic reconcile
        # Runs, and attempts that no run remembers, that could not be looked at, and of which that was said.
        self.unseen: set[str] = set()
        self.unseen_strays: set[str] = set()
        self.strays: set[str] = set()  # attempts that are over by the records and live, and of which that was said
        self.past_limit: dict[str, float] = {}  # attempts seen past their limit, and since when by the awake clock
        self.passes = 0  # how often it was decided
        self.last_pass_at: float | None = None
        self._next_reconcile = 0.0
        self._thread = Thread(target=self._run, name="rota-loop", daemon=True)

    # -- from other threads -----------------------------------------------------------------------------------------
    def open(self, nodes: Sequence[Node] = ()) -> None:
        self.take_over(nodes)
        self._thread.start()

    def take_over(self, nodes: Sequence[Node] = ()) -> None:
        """Fence off every earlier server and find out what happened while nobody looked. `nodes` is what a probe sees
        now: nothing may be decided on what the last server saw."""
        self._load()  # first: a store that cannot be read is left as it was
        epoch = self.store.begin_epoch()
        self._begun = (max(self.clock.now(), self.state.at), self.clock.tick())
        self.clock_warning = clock_warning(self.state.at, self.clock.now())
        if self.clock_warning:
            log.warning("%s", self.clock_warning)
        self.backend.open(self.report)
        self._next_reconcile = self.clock.tick() + RECONCILE_S
        reconcile.at_start(self, epoch, nodes)

    def now(self) -> float:
        """The house's time: goes on from the last thing recorded, by the tick. A wall clock that was set back, even by
        a day and between two servers, neither turns it back nor stops it: what backs off would wait for ever."""
        return self._begun[0] + self.clock.tick() - self._begun[1]

    @property
    def watched_from(self) -> float:
        """Since which tick this server has watched the attempts."""
        return self._begun[1]

    def reconcile_by(self, tick: float) -> None:
        """Have the next periodic round by this moment at the latest."""
        self._next_reconcile = min(self._next_reconcile, tick)

    def turn(self) -> None:
        """One turn with whatever is there, on the caller's thread: a simulation drives the loop with it."""
        self.step(self._inbox.take(MAX_BATCH))

    def call(self, work: Work) -> Future[Any]:
        """Have work done on the desk; the future is answered once it is durable."""
        future: Future[Any] = Future()
        self.post(work, future)
        return future

    def post(self, work: Work, answer: Answer, *, large: bool = False) -> None:
        """Have work done and answered. `large`: it takes so long that it has a turn of its own."""
        item = Item(work, answer)
        with self._waker:
            if self._thread.ident is not None and not self._thread.is_alive():
                item.answer.set_exception(Unavailable("the loop is not running here: it was closed, or this is a fork"))
            elif self._closing:
                item.answer.set_exception(Unavailable("the server is stopping; send it again to the next one"))
            elif len(self._inbox) >= MAX_INBOX:
                item.answer.set_exception(Full(f"{MAX_INBOX} requests are waiting already; slow down and send again"))
            else:
                self._inbox.append(item, large=large)
                self._waker.notify()

    def report(self, report: Report) -> None:
        """News from a backend. Never refused: what is not taken in now is found again by reconcile."""
        with self._waker:
            if not self._closing:
                self._inbox.append(report)
                self._waker.notify()

    def close(self) -> None:
        """Finish what has come in and stop. Running work runs on."""
        with self._waker:
            self._closing = True
            self._waker.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self.backend.close()

    # -- the thread -------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        batch: list[Item | Report] | None = []
        try:
            while True:
                batch = self._take()
                if batch is None:
                    return
                self.step(batch)
        except BaseException as error:
            # The one writer must not die silently: whoever waits is told, and nothing more is taken in (P7).
            log.critical("the loop stopped: %s", error, exc_info=not isinstance(error, StoreError))
            self._refuse_all(error, batch or ())
            self.on_fatal(error)

    def _take(self) -> list[Item | Report] | None:
        with self._waker:
            while not self._inbox:
                if self._closing:
                    return None
                wait = self._until_next_timer()
                if wait <= 0:
                    break
                self._waker.wait(wait)
            return self._inbox.take(MAX_BATCH)

    def _until_next_timer(self) -> float:
        wait = self._next_reconcile - self.clock.tick()
        if self.degraded:
            return wait
        if self.shortage:
            return min(wait, self._space_at - self.clock.tick())
        if self._decided < 0:
            return 0.0  # the last pass asked for another look
        moments = [self.state.next_reservation_edge(self.now()), self._look_again_at]
        if self.state.delayed:
            moments.append(self.state.delayed[0][0])
        due = [moment for moment in moments if moment is not None]
        return min(wait, min(due) - self.now()) if due else wait

    def step(self, batch: Sequence[Item | Report]) -> None:
        """One turn: see the module's head."""
        if self.degraded and not self._recover():
            self._turn_away(batch)
            return
        self._look_at_space()
        desk = self._desk()
        answers: list[tuple[Answer, Any]] = []
        policy = self.state.policy
        for item in batch:
            if isinstance(item, Item):
                self._handle(desk, item, answers)
            else:
                settle(desk, item)
        # a new policy may bound what runs already
        look = self.clock.tick() >= self._next_reconcile or self.state.policy is not policy
        if look:
            self._next_reconcile = self.clock.tick() + RECONCILE_S
            with self._despite_os_errors():
                reconcile.now_and_then(self, desk)
        self._decide(desk)
        try:
            self.commit(desk)
        except (Fenced, StoreBroken):
            for future, _ in answers:
                future.set_exception(
                    Unavailable(
                        "the store failed: unknown whether this was stored; ask, or repeat it with the same key"
                    )
                )
            raise
        except StoreError as error:
            self._degrade(error, [future for future, _ in answers])
            return
        self.settle_down()  # before anybody is told: who has an answer must be able to see it
        for future, answer in answers:
            future.set_result(answer)
        self._act(desk)
        if look:
            with self._despite_os_errors():
                reconcile.act_again(self)
        for item in batch:
            if isinstance(item, Ended):
                self.strays.discard(item.attempt_id)
                with self._despite_os_errors():
                    self.backend.forget(item.attempt_id)

    def _desk(self) -> Desk:
        return Desk(
            self.state,
            self.store,
            self.now(),
            self.clock.tick(),
            self.new_id,
            kinds=self.kinds,
            accounts=self.site.accounts,
            budget=self.budget,
            envs=self.envs,
            shortage=self.shortage,
            checkpoints=self.checkpoints,
            watched_from=self.watched_from,
        )

    def _look_at_space(self) -> None:
        if self.space is None or self.clock.tick() < self._space_at:
            return
        self._space_at = self.clock.tick() + SPACE_EVERY_S
        with self._despite_os_errors():
            before, self.shortage = self.shortage, self.space.shortage()
            if bool(before) != bool(self.shortage):
                log.warning("%s", self.shortage or "there is room on the disk again: new work is taken in")
            if before != self.shortage:
                self.window.tell_shortage(self.shortage)
            if not self.shortage:
                self._keep_room(self.space.kept_in_ledger())

    def _keep_room(self, size: int) -> None:
        try:
            if size:
                self.store.keep_room(self.state, size)
            self._roomless = ""
        except (Fenced, StoreBroken):
            raise
        except StoreError as error:  # it is tried again at the next look; until then the ledger goes on without
            if str(error) != self._roomless:
                self._roomless = str(error)
                log.error("no room can be set aside in the ledger for the time when the disk is full: %s", error)

    def _handle(self, desk: Desk, item: Item, answers: list[tuple[Answer, Any]]) -> None:
        if not item.answer.set_running_or_notify_cancel():
            return
        try:
            answers.append((item.answer, item.work(desk)))
        except Refused as refusal:
            # Its traceback has this frame and the turn's, which refer to all answers: a cycle.
            item.answer.set_exception(refusal.with_traceback(None))
        except (Fenced, StoreBroken):
            item.answer.set_exception(Unavailable("the store failed"))
            raise
        except StoreError as error:  # while it looked something up; what it would have written is not there
            item.answer.set_exception(Unavailable(f"the store does not answer: {error}; send it again"))
        except Exception as error:
            # A defect in one command is its caller's to see; the others of the batch go on.
            log.exception("a command failed")
            item.answer.set_exception(error)

    def _decide(self, desk: Desk) -> None:
        self.state.wake(desk.now)
        expire(desk)
        if self.shortage:
            self._decided = -1  # a pass is due as soon as there is room
            return
        due = any(at is not None and at <= desk.now for at in (self._look_again_at, self._edge))
        if self.state.version == self._decided and self.state.woken == self._woken and not due:
            return
        self._woken = self.state.woken
        self._look_again_at, self._edge = None, self.state.next_reservation_edge(desk.now)
        self.passes, self.last_pass_at = self.passes + 1, desk.now
        try:
            plan = decide(snapshot(self.state, desk.now))
        except Exception as error:
            # A defect in a policy must not take down what runs, nor the submits of everybody (P7): stop launching.
            log.exception("decide failed, scheduling is paused")
            if not self.state.paused:
                desk.write(e.SchedulingPaused(at=desk.now, why=f"the scheduler failed: {error!r}"))
            self._decided = self.state.version
            return
        for start in plan.starts:
            run = self.state.runs[start.run_id]
            desk.write(
                e.AttemptPlanned(
                    at=desk.now,
                    run_id=run.id,
                    attempt_id=attempt_id(run.id, run.attempts_made + 1),
                    tick=desk.tick,
                    fence=self.state.epoch,
                    placement=start.placement,
                    grace_s=at_launch_s(self.state.policy, run.spec),
                )
            )
        for victim in plan.preempts:
            desk.write(request(self.state.policy, self.state.runs, victim, desk.now))
        self._look_again_at = plan.look_again_at
        # a pass that preempted has not seen what is left when they go
        self._decided = -1 if plan.preempts else self.state.version

    def commit(self, desk: Desk) -> None:
        if not desk.events and not desk.keys:
            return
        keys = list(desk.keys.values())
        try:
            self.store.append(desk.events, self.state, keys)
        except StoreFull as error:
            if self.space is None or not self.space.relieve():
                raise
            log.warning("the disk is full (%s): the ballast is given up for the ledger", error)
            self.store.append(desk.events, self.state, keys)

    def _act(self, desk: Desk) -> None:
        """Effects of what is now durable. Each may be repeated after a crash without harm."""
        launches = []
        for event in desk.events:
            run = self.state.runs.get(event.run_id) if isinstance(event, e.RunEvent) else None
            if run is None or run.attempt is None:
                continue
            if run.attempt.reported:
                continue  # carried elsewhere
            if isinstance(event, e.AttemptPlanned) and run.attempt.id == event.attempt_id:
                launches.append(dispatch.launch_order(self.state, run, self.site))
            elif isinstance(event, e.StopRequested) and run.attempt.id == event.attempt_id:
                with self._despite_os_errors():
                    dispatch.stop(self.backend, run)
        if launches:
            with self._despite_os_errors():
                self.backend.launch(*launches)
        self.tell(desk)

    def tell(self, desk: Desk) -> None:
        """Every durable event, in order, to everybody who listens."""
        if desk.events:
            first = self.state.version - len(desk.events) + 1
            for subscriber in self.subscribers:
                self._tell(subscriber, first, desk.events)

    def _tell(self, subscriber: Subscriber, first: int, events: Sequence[e.Event]) -> None:
        try:
            subscriber(first, events)
        except Exception:
            # A defect of one listener, or a pipe nobody reads any more, must not end the one writer.
            log.exception("a subscriber failed")

    @contextmanager
    def _despite_os_errors(self) -> Iterator[None]:
        """A full disk must not end the one writer: what is durable and was not done is done by the next reconcile."""
        try:
            yield
        except OSError as error:
            log.error("the backend could not do it now: %s", error)

    def settle_down(self) -> None:
        """The batch is durable: show it, and let what has ended leave memory."""
        self.window.show(self.state)
        for run in self.state.touched.values():
            if run.state in ENDED:
                self.state.retire(run.id)
        self.state.committed()

    def _load(self) -> None:
        self.state = self.store.load()
        self.kinds.clear()  # they may count what was not stored
        self.window.reset(self.state)

    # -- when the store does not take it ----------------------------------------------------------------------------
    def _degrade(self, error: StoreError, waiting: Sequence[Answer]) -> None:
        """Memory is ahead of the store: go back to what is durable, refuse writes until one succeeds again (P7)."""
        self.degraded = str(error)
        log.error("cannot write, scheduling stops until it works again: %s", error)
        for future in waiting:
            future.set_exception(Unavailable(f"not stored: {error}; send it again"))
        self._go_back(error)

    def _recover(self) -> bool:
        """Try to write; on success everything missed meanwhile is found by reconcile."""
        try:
            if self._astray:
                self._load()
            self._astray = True
            desk = Desk(self.state, self.store, self.now(), self.clock.tick(), self.new_id)
            desk.write(e.ServerStarted(at=desk.now, epoch=self.state.epoch, boot_id=self.state.boot_id))
            self.commit(desk)
            self.settle_down()
            self.tell(desk)
            reconcile.everything(self)
        except (Fenced, StoreBroken):
            raise
        except (StoreError, OSError) as error:
            self._go_back(error)
            return False
        log.warning("writing works again")
        self.degraded, self._astray = "", False
        return True

    def _go_back(self, error: Exception) -> None:
        self.degraded = str(error)
        self._decided = -1
        self._next_reconcile = self.clock.tick() + RETRY_STORE_S
        self._astray = True
        with suppress(StoreBusy, StoreFull):  # not even readable: until it is, memory shows what may not be durable
            self._load()
            self._astray = False

    def _turn_away(self, batch: Sequence[Item | Report]) -> None:
        for item in batch:
            if isinstance(item, Item) and item.answer.set_running_or_notify_cancel():
                item.answer.set_exception(Unavailable(f"not stored: {self.degraded}; send it again"))

    def _refuse_all(self, error: BaseException, batch: Sequence[Item | Report]) -> None:
        """Whoever waits for an answer, in the turn that failed or after it, gets one."""
        with self._waker:
            self._closing = True
            waiting = [item for item in (*batch, *self._inbox.clear()) if isinstance(item, Item)]
        for item in waiting:
            if not item.answer.done():
                item.answer.set_exception(Unavailable(f"the server is stopping: {error}"))
