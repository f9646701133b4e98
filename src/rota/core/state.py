"""All that is true now, with the indices a decision reads. Only `reduce` changes it.

Ended runs leave the state once they are durable (`retire`): a server with a long history stays small.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import replace

from rota.core import order
from rota.core.board import Board, Layout
from rota.core.fragment import Packer
from rota.core.node import Node
from rota.core.policy import Policy
from rota.core.predict import History
from rota.core.queue import Place, Queue
from rota.core.reservation import COUNTED_S, Reservation, by_start, next_edge
from rota.core.resources import gpu_count
from rota.core.run import ACTIVE, ENDED, Dependency, Run, RunState
from rota.core.shapes import Shapes
from rota.core.timeline import Timeline
from rota.core.usage import Load, Usage
from rota.core.weight import Weights

_PLAIN = ("version", "at", "epoch", "boot_id", "next_seq", "policy", "paused", "pause_why")
_COUNTS = ("active", "waiting", "held", "woken", "nodes_changed")


class State:
    def __init__(self) -> None:
        self.version = 0  # of the last event taken in
        self.at = 0.0  # its time; events never go back in time
        self.epoch = 0
        self.boot_id = ""
        self.next_seq = 1
        self.policy = Policy()
        self.paused = False
        self.pause_why = ""
        self.caps: dict[str, int] = {}  # group -> how many of its runs may be active at a time
        self.nodes: dict[str, Node] = {}
        self.runs: dict[str, Run] = {}
        self.usage: dict[str, Usage] = {}
        self.reservations: dict[str, Reservation] = {}  # those to come and those of now
        self.past_reservations: dict[str, Reservation] = {}  # those that count against their owners' bounds still
        # indices: derived from the above, rebuilt by index_all()
        self._board: Board | None = Board(Layout(()))  # None = the nodes changed since it was laid
        self.nodes_changed = 0  # how often
        self.shapes = Shapes()  # what was asked for lately
        self._packer: Packer | None = None
        self.queue = Queue()  # ready to start: queued, nothing to wait for
        self.delayed: list[tuple[float, str]] = []  # queued, backing off until then
        self.woken = 0  # how many have ever come out of it
        self.dependents: dict[str, set[str]] = {}  # run id -> who waits for it
        # active runs are those with an attempt of this house. Those that are carried elsewhere are apart: they hold and
        # want nothing here, so they must not count against anybody's limits
        self.elsewhere: dict[str, None] = {}
        self.elsewhere_by_user: dict[str, int] = {}  # how many of them
        self.timeline = Timeline()  # active runs by expected end
        self.stoppable: dict[str, None] = {}  # active runs that said they may be stopped, in the order they started
        self.fillers = 0  # of them
        self.calendar: tuple[Reservation, ...] = ()  # the reservations, by start
        self.load: dict[str, Load] = {}
        self.weights = Weights()  # bytes of each person's live specs
        self.groups: dict[str, int] = {}  # group -> how many of its runs are active, here or elsewhere
        self.active = 0
        self.waiting = 0
        self.held = 0  # of those that wait
        self.history = History()
        # what reduce touched since the last commit, for the projection rows: see `committed`
        self.touched: dict[str, Run] = {}
        self.forgotten: list[str] = []  # past reservations that it dropped

    # -- runs -------------------------------------------------------------------------------------------------------
    def put(self, run: Run) -> None:
        """Store a run in its new shape and keep every index true."""
        old = self.runs.get(run.id)
        if old is not None:
            self._unindex(old)
        self._weigh(old, run)
        self.runs[run.id] = run
        self._index(run)
        self.touched[run.id] = run

    def strike(self, run: Run, ended: str, left: tuple[Dependency, ...]) -> None:
        """Take the dependency on `ended` off a waiting run; `left` is what remains. A run that still waits for others
        stays as it is in every other index: with many dependencies, `put` would unlink and link all of them."""
        struck = replace(run, waiting_on=left)
        if not left or ended in [dependency.run_id for dependency in left]:
            self.put(struck)
            return
        self._drop_dependent(ended, run.id)
        self.load[run.user].edges -= len(run.waiting_on) - len(left)
        self.runs[run.id] = self.touched[run.id] = struck

    def retire(self, run_id: str) -> None:
        """Forget an ended run; the store remembers it. One that ended long ago and was only edited is not here."""
        run = self.runs.get(run_id)
        if run is None:
            return
        if run.state not in ENDED:
            raise ValueError(f"run {run_id} is not ended")
        del self.runs[run_id]

    def _weigh(self, old: Run | None, new: Run) -> None:
        """Count the bytes of a spec while its run is live. Most changes keep the spec and cost nothing."""
        ended = new.state in ENDED
        if old is not None and old.state not in ENDED and (ended or old.spec is not new.spec):
            self.weights.drop(old.user, old.spec)
            if not ended:
                self.weights.add(new.user, new.spec)
        elif old is None and not ended:
            self.weights.add(new.user, new.spec)

    def _index(self, run: Run) -> None:
        if run.state in ENDED:
            return
        if run.is_elsewhere:
            self.elsewhere[run.id] = None
            self.elsewhere_by_user[run.user] = self.elsewhere_by_user.get(run.user, 0) + 1
            self._join_group(run.spec.group)
            return
        load = self.load.get(run.user)
        if load is None:
            load = self.load[run.user] = Load()
        if run.state in ACTIVE:
            attempt = run.attempt
            assert attempt is not None
            load.running += 1
            load.gpus += gpu_count(attempt.placement)
            self.active += 1
            self._join_group(run.spec.group)
            self.timeline.put(run.id, attempt.expected_end, attempt.placement)
            if run.spec.stoppable:
                self.stoppable[run.id] = None
                self.fillers += run.spec.filler
            return
        load.queued += 1
        load.edges += len(run.waiting_on)
        self.waiting += 1
        load.held += run.state is RunState.HELD
        self.held += run.state is RunState.HELD
        for dependency in run.waiting_on:
            self.dependents.setdefault(dependency.run_id, set()).add(run.id)
        if run.state is RunState.QUEUED and not run.waiting_on:
            if run.not_before > self.at:
                insort(self.delayed, (run.not_before, run.id))
            else:
                self._enqueue(run)

    def _enqueue(self, run: Run) -> None:
        self.queue.add(run.id, self._place(run), order.key(self.policy, run))

    def _place(self, run: Run) -> Place:
        return (run.user, run.spec.request, run.spec.group, order.band(self.policy, run))

    def _unindex(self, run: Run) -> None:
        if run.state in ENDED:
            return
        if run.is_elsewhere:
            del self.elsewhere[run.id]
            self.elsewhere_by_user[run.user] -= 1
            if not self.elsewhere_by_user[run.user]:
                del self.elsewhere_by_user[run.user]
            self._leave_group(run.spec.group)
            return
        load = self.load[run.user]
        if run.state in ACTIVE:
            assert run.attempt is not None
            load.running -= 1
            load.gpus -= gpu_count(run.attempt.placement)
            self.active -= 1
            self._leave_group(run.spec.group)
            self.timeline.drop(run.id)
            if run.id in self.stoppable:
                del self.stoppable[run.id]
                self.fillers -= run.spec.filler
        else:
            load.queued -= 1
            load.edges -= len(run.waiting_on)
            self.waiting -= 1
            load.held -= run.state is RunState.HELD
            self.held -= run.state is RunState.HELD
            for dependency in run.waiting_on:
                self._drop_dependent(dependency.run_id, run.id)
            if run.id in self.queue:
                self.queue.remove(run.id)
            else:
                self._undelay(run)
        if not (load.queued or load.running):
            del self.load[run.user]

    def _join_group(self, group: str) -> None:
        if group:
            self.groups[group] = self.groups.get(group, 0) + 1

    def _leave_group(self, group: str) -> None:
        if group:
            self.groups[group] -= 1
            if not self.groups[group]:
                del self.groups[group]

    def _drop_dependent(self, dependency: str, run_id: str) -> None:
        waiters = self.dependents.get(dependency)
        if waiters is not None:
            waiters.discard(run_id)
            if not waiters:
                del self.dependents[dependency]

    def _undelay(self, run: Run) -> None:
        entry = (run.not_before, run.id)
        at = bisect_left(self.delayed, entry)
        if at < len(self.delayed) and self.delayed[at] == entry:
            del self.delayed[at]

    def wake(self, now: float) -> None:
        """Let runs whose back-off is over into the queue."""
        while self.delayed and self.delayed[0][0] <= now:
            _, run_id = self.delayed.pop(0)
            self.woken += 1
            self._enqueue(self.runs[run_id])

    # -- reservations -------------------------------------------------------------------------------------------------
    def book(self, reservation: Reservation) -> None:
        self.reservations[reservation.id] = reservation
        self.calendar = by_start(self.reservations.values())

    def unbook(self, reservation_id: str, counted_until: float | None = None) -> None:
        """It is over. A run that names it names nothing any more, and stands in line like everybody else."""
        ended = self.reservations.pop(reservation_id)
        if counted_until is not None:
            self.past_reservations[ended.id] = replace(ended, counted_until=counted_until)
        self.calendar = by_start(self.reservations.values())

    def forget_reservations(self, now: float) -> None:
        """Drop those that count no more."""
        for one in [one for one in self.past_reservations.values() if one.counts_until() <= now - COUNTED_S]:
            del self.past_reservations[one.id]
            self.forgotten.append(one.id)

    def committed(self) -> None:
        """What reduce touched is durable."""
        self.touched.clear()
        self.forgotten.clear()

    def reservation_of(self, run: Run) -> Reservation | None:
        """Whose GPUs a run is to have; None = it names none, or one that is over."""
        return self.reservations.get(run.spec.reservation)

    def next_reservation_edge(self, now: float) -> float | None:
        """When a reservation next begins or ends: something to decide anew, though nothing happened."""
        return next_edge(self.calendar, now)

    # -- nodes ------------------------------------------------------------------------------------------------------
    def relay(self) -> None:
        """The nodes changed: the board is laid anew when it is next looked at, so that many changes cost one laying."""
        self._board = None
        self.nodes_changed += 1

    @property
    def board(self) -> Board:
        """Who holds what, on the nodes as they are."""
        if self._board is None:
            self._board = Board(Layout(self.nodes.values()))
            for _, run_id in self.timeline:
                attempt = self.runs[run_id].attempt
                assert attempt is not None
                self._board.take(tuple(part for part in attempt.placement if part.node in self.nodes))
        return self._board

    def packer(self) -> Packer:
        """Made anew only when the nodes or the typical shapes changed: it remembers what it computed."""
        layout, typical = self.board.layout, self.shapes.typical()
        if self._packer is None or self._packer.layout is not layout or self._packer.typical is not typical:
            self._packer = Packer(layout, typical)
        return self._packer

    # -- whole ------------------------------------------------------------------------------------------------------
    def reorder(self) -> None:
        """The policy changed: sort the queue anew."""
        before, self.queue = self.queue, Queue()
        for _, _, run_id in before.entries():
            self._enqueue(self.runs[run_id])

    def index_all(self) -> None:
        """After loading rows: build every index from the facts."""
        self.weights.add_all(run for run in self.runs.values() if run.state not in ENDED)
        at_once: list[Run] = []
        queued = RunState.QUEUED
        for run in self.runs.values():
            if run.state is queued and not run.waiting_on and run.not_before <= self.at:
                at_once.append(run)
            else:
                self._index(run)
        for user, count in Counter([run.user for run in at_once]).items():
            self.load.setdefault(user, Load()).queued += count
        self.waiting += len(at_once)
        self.queue.fill((run.id, self._place(run), order.key(self.policy, run)) for run in at_once)
        self.shapes.add_all([run.spec.request for run in self.runs.values()])
        self.calendar = by_start(self.reservations.values())
        self.relay()

    def fork(self) -> State:
        """A copy to think on. Runs, nodes and policy are immutable and shared."""
        twin = State()
        for name in (*_PLAIN, *_COUNTS):
            setattr(twin, name, getattr(self, name))
        twin.caps, twin.groups = dict(self.caps), dict(self.groups)
        twin.nodes = dict(self.nodes)
        twin.runs = dict(self.runs)
        twin.usage = dict(self.usage)
        twin.reservations, twin.calendar = dict(self.reservations), self.calendar
        twin.past_reservations = dict(self.past_reservations)
        twin._board = self.board.copy()
        twin.shapes, twin._packer = self.shapes.copy(), self._packer
        twin.queue = self.queue.copy()
        twin.delayed = list(self.delayed)
        twin.dependents = {key: set(waiters) for key, waiters in self.dependents.items()}
        twin.timeline, twin.elsewhere = self.timeline.copy(), dict(self.elsewhere)
        twin.elsewhere_by_user = dict(self.elsewhere_by_user)
        twin.stoppable, twin.fillers = dict(self.stoppable), self.fillers
        twin.weights = self.weights.copy()
        twin.load = {user: load.copy() for user, load in self.load.items()}
        return twin
