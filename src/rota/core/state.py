"""All that is true now, with the indices a decision reads. Only `reduce` changes it.

Ended runs leave the state once they are durable (`retire`): a server with a long history stays small.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from rota.core import order
from rota.core.board import Board, Layout
from rota.core.node import Node
from rota.core.policy import Policy
from rota.core.predict import History
from rota.core.queue import Queue
from rota.core.resources import gpu_count
from rota.core.run import ACTIVE, ENDED, Run, RunState
from rota.core.timeline import Timeline
from rota.core.usage import Load, Usage

_PLAIN = ("version", "at", "epoch", "boot_id", "next_seq", "policy", "paused", "pause_why", "active", "waiting")


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
        self.nodes: dict[str, Node] = {}
        self.runs: dict[str, Run] = {}
        self.usage: dict[str, Usage] = {}
        # indices: derived from the above, rebuilt by index_all()
        self.board = Board(Layout(()))
        self.queue = Queue()  # ready to start: queued, nothing to wait for
        self.delayed: list[tuple[float, str]] = []  # queued, backing off until then
        self.woken = 0  # how many have ever come out of it
        self.dependents: dict[str, set[str]] = {}  # run id -> who waits for it
        self.timeline = Timeline()  # active runs by expected end
        self.load: dict[str, Load] = {}
        self.active = 0
        self.waiting = 0
        self.history = History()
        # what reduce touched since the last commit, for the projection rows
        self.touched: dict[str, Run] = {}

    # -- runs -------------------------------------------------------------------------------------------------------
    def put(self, run: Run) -> None:
        """Store a run in its new shape and keep every index true."""
        old = self.runs.get(run.id)
        if old is not None:
            self._unindex(old)
        self.runs[run.id] = run
        self._index(run)
        self.touched[run.id] = run

    def retire(self, run_id: str) -> None:
        """Forget an ended run; the store remembers it."""
        if self.runs[run_id].state not in ENDED:
            raise ValueError(f"run {run_id} is not ended")
        del self.runs[run_id]

    def _index(self, run: Run) -> None:
        if run.state in ENDED:
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
            self.timeline.put(run.id, attempt.expected_end, attempt.placement)
            return
        load.queued += 1
        self.waiting += 1
        for dependency in run.waiting_on:
            self.dependents.setdefault(dependency.run_id, set()).add(run.id)
        if run.state is RunState.QUEUED and not run.waiting_on:
            if run.not_before > self.at:
                insort(self.delayed, (run.not_before, run.id))
            else:
                self.queue.add(run.id, run.user, run.spec.request, order.key(self.policy, run))

    def _unindex(self, run: Run) -> None:
        if run.state in ENDED:
            return
        load = self.load[run.user]
        if run.state in ACTIVE:
            assert run.attempt is not None
            load.running -= 1
            load.gpus -= gpu_count(run.attempt.placement)
            self.active -= 1
            self.timeline.drop(run.id)
        else:
            load.queued -= 1
            self.waiting -= 1
            for dependency in run.waiting_on:
                self._drop_dependent(dependency.run_id, run.id)
            if run.id in self.queue:
                self.queue.remove(run.id)
            else:
                self._undelay(run)
        if not (load.queued or load.running):
            del self.load[run.user]

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
            run = self.runs[run_id]
            self.queue.add(run.id, run.user, run.spec.request, order.key(self.policy, run))

    # -- nodes ------------------------------------------------------------------------------------------------------
    def relay(self) -> None:
        """The nodes changed: lay the board anew and take what is held."""
        self.board = Board(Layout(self.nodes.values()))
        for _, run_id in self.timeline:
            attempt = self.runs[run_id].attempt
            assert attempt is not None
            self.board.take(tuple(part for part in attempt.placement if part.node in self.nodes))

    # -- whole ------------------------------------------------------------------------------------------------------
    def reorder(self) -> None:
        """The policy changed: sort the queue anew."""
        fresh = Queue()
        for lane, _, run_id in self.queue.entries():
            fresh.add(run_id, lane.user, lane.request, order.key(self.policy, self.runs[run_id]))
        self.queue = fresh

    def index_all(self) -> None:
        """After loading rows: build every index from the facts."""
        for run in self.runs.values():
            self._index(run)
        self.relay()

    def fork(self) -> State:
        """A copy to think on. Runs, nodes and policy are immutable and shared."""
        twin = State()
        for name in _PLAIN:
            setattr(twin, name, getattr(self, name))
        twin.nodes = dict(self.nodes)
        twin.runs = dict(self.runs)
        twin.usage = dict(self.usage)
        twin.board = self.board.copy()
        twin.queue = self.queue.copy()
        twin.delayed = list(self.delayed)
        twin.dependents = {key: set(waiters) for key, waiters in self.dependents.items()}
        twin.timeline = self.timeline.copy()
        twin.load = {user: load.copy() for user, load in self.load.items()}
        return twin
