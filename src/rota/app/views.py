"""What is so, for everybody who only looks: live runs, nodes and switches as of the last thing that is durable.

The loop shows each committed batch here (`Window.show`); other threads take a `View`, which is one moment and does not
move. A view is made when somebody asks and kept until something happens: who asks twice gets the same one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain
from threading import Lock

from rota.core import order
from rota.core.node import Node
from rota.core.order import Band, Key
from rota.core.policy import Ordering, Policy
from rota.core.rank import ahead
from rota.core.reservation import Reservation
from rota.core.resources import bits
from rota.core.run import ACTIVE, ENDED, Run, RunState
from rota.core.state import State
from rota.core.usage import Shares

Line = list[tuple[Key, str]]  # queued runs of one person and band, first is next
Lines = dict[tuple[str, Band], Line]
MOVED = (Ordering.FAIR_SHARE, Ordering.AUTO)  # by what people use, or by time: the keys alone do not say who is next


class View:
    """One moment. All of it may be read from any thread."""

    def __init__(self, window: Window) -> None:
        self.version = window.version
        self.at = window.at
        self.policy = window.policy
        # without room on the disk nothing is started either
        self.paused = window.paused or bool(window.shortage)
        self.pause_why = window.pause_why if window.paused else window.shortage
        self.resumes_itself = self.paused and not window.paused  # once there is room; no command would
        self.caps: Mapping[str, int] = window.caps
        self.nodes: Mapping[str, Node] = window.nodes
        self.reservations: tuple[Reservation, ...] = window.reservations
        self.runs: Mapping[str, Run] = window.runs.copy()
        self._held = tuple(window.held)
        self._active = tuple(window.active)
        self._lines = {lane: line.copy() for lane, line in window.lines.items()}
        self._shares = window.shares()

    def queue(self) -> list[Run]:
        """Queued, in the order of the policy; those that wait for others or back off stand there too."""
        return [self.runs[run_id] for run_id in self._order]

    def active(self) -> list[Run]:
        return [self.runs[run_id] for run_id in self._active]

    def held(self) -> list[Run]:
        return [self.runs[run_id] for run_id in self._held]

    def position(self, run_id: str) -> int | None:
        """1 = next; None = it does not stand in the queue."""
        run = self.runs.get(run_id)
        return None if run is None else _position(run, self._lines, self.policy, self._shares)

    def total_gpus(self) -> int:
        return sum(len(node.gpus) for node in self.nodes.values())

    def free_gpus(self) -> int:
        """May be given out now: healthy, on a node in service, held by nobody."""
        usable = sum(node.usable.bit_count() for node in self.nodes.values())
        return usable - sum(
            node is not None and node.usable >> index & 1
            for node, index in ((self.nodes.get(node_id), index) for node_id, index in self.holders())
        )

    def holders(self) -> Mapping[tuple[str, int], Run]:
        """Who holds which GPU, by node and the node's own number."""
        return self._holders

    @cached_property
    def _holders(self) -> Mapping[tuple[str, int], Run]:
        found = {}
        for run in self.active():
            for part in run.attempt.placement if run.attempt else ():
                for index in bits(part.gpus):
                    found[part.node, index] = run
        return found

    @cached_property
    def _order(self) -> list[str]:
        policy, shares = self.policy, self._shares
        if policy.ordering not in MOVED:
            return [run_id for _, run_id in sorted(chain.from_iterable(self._lines.values()))]
        ranked = [
            (order.rank(policy, shares, user, band, key), key, run_id)
            for (user, band), line in self._lines.items()
            for key, run_id in line
        ]
        return [run_id for _, _, run_id in sorted(ranked)]


def _position(run: Run, lines: Lines, policy: Policy, shares: Shares) -> int | None:
    """By a search in each line, not by walking."""
    if run.state is not RunState.QUEUED:
        return None
    key, band = order.key(policy, run), order.band(policy, run)
    if policy.ordering not in MOVED:
        return 1 + sum(bisect_left(line, (key, run.id)) for line in lines.values())
    mine = (order.rank(policy, shares, run.user, band, key), key)
    return 1 + sum(ahead(policy, shares, lane, line, mine) for lane, line in lines.items())


class Window:
    """Kept by the loop's thread, looked through from all."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._view: View | None = None
        self.shortage = ""  # of space on the disk
        self.reset(State())

    def reset(self, state: State) -> None:
        """After loading: everything anew."""
        with self._lock:
            self.runs: dict[str, Run] = {}
            self.active: dict[str, None] = {}  # in the order of their start
            self.held: dict[str, None] = {}
            self.lines: Lines = {}
            self.people: Counter[str] = Counter()  # how many live runs each person has here
            self.archived: set[str] = set()
            self.policy = state.policy
            self._nodes_changed = -1
            self.runs = state.runs.copy()
            for run in state.runs.values():
                if run.state in ENDED:
                    del self.runs[run.id]
                elif run.archived_at is not None:
                    self.archived.add(run.id)
            self.people.update({user: load.queued + load.running for user, load in state.load.items()})
            # Where most runs stand is known: in the lanes of the scheduler's queue.
            for lane in state.queue.lanes():
                self.lines.setdefault((lane.user, lane.band), []).extend(lane.runs)
            for line in self.lines.values():
                line.sort()
            if len(state.queue) < len(self.runs):
                for run in self.runs.values():
                    if run.id not in state.queue:
                        self._stand(run)
            self._switches(state)

    def show(self, state: State) -> None:
        """What was touched is durable now."""
        if state.version == self.version:  # a turn in which nothing happened
            return
        with self._lock:
            for run in state.touched.values():
                old = self.runs.pop(run.id, None)
                if old is not None:
                    self._remove(old, run)
                if run.state not in ENDED:
                    self._add(run)
            if state.policy is not self.policy:
                self.policy = state.policy
                self._stand_anew()
            self._switches(state)

    def tell_shortage(self, shortage: str) -> None:
        with self._lock:
            self.shortage = shortage
            self._view = None

    def view(self) -> View:
        with self._lock:
            if self._view is None:
                self._view = View(self)
            return self._view

    def counts(self) -> dict[RunState, int]:
        """Live runs in each state, archived ones aside."""
        with self._lock:
            found = dict.fromkeys(RunState, 0)
            found[RunState.QUEUED] = sum(map(len, self.lines.values()))
            found[RunState.HELD] = len(self.held)
            for run_id in self.active:
                found[self.runs[run_id].state] += 1
            for run_id in self.archived:
                found[self.runs[run_id].state] -= 1
            return found

    def elsewhere(self) -> int:
        """Count the active runs that are only reported, archived ones aside."""
        with self._lock:
            return sum(self.runs[run_id].is_elsewhere for run_id in self.active if run_id not in self.archived)

    def run(self, run_id: str) -> Run | None:
        """A live run, without the cost of a view."""
        return self.runs.get(run_id)

    def position(self, run_id: str) -> int | None:
        """As View.position, without the cost of a view: every submit asks."""
        with self._lock:
            run = self.runs.get(run_id)
            return None if run is None else self._place(run)

    def place_of(self, run: Run) -> int | None:
        """Where a run would stand that is not here: a dry run's."""
        with self._lock:
            return self._place(run)

    def _place(self, run: Run) -> int | None:
        return _position(run, self.lines, self.policy, self.shares())

    def shares(self) -> Shares:
        return Shares(self.usage, self.people.copy(), self.at, self.policy.half_life_s, self._gpus)

    def _add(self, run: Run) -> None:
        self.runs[run.id] = run
        if not run.is_elsewhere:
            self.people[run.user] += 1
        if run.archived_at is not None:
            self.archived.add(run.id)
        self._stand(run)

    def _stand(self, run: Run) -> None:
        if run.state is RunState.QUEUED:
            line = self.lines.setdefault((run.user, order.band(self.policy, run)), [])
            entry = (order.key(self.policy, run), run.id)
            if not line or entry > line[-1]:
                line.append(entry)
            else:
                insort(line, entry)
        elif run.state is RunState.HELD:
            self.held[run.id] = None
        else:
            self.active[run.id] = None

    def _remove(self, run: Run, becomes: Run) -> None:
        self.archived.discard(run.id)
        if not run.is_elsewhere:
            self.people[run.user] -= 1
            if not self.people[run.user]:
                del self.people[run.user]
        if run.state is RunState.QUEUED:
            lane = (run.user, order.band(self.policy, run))
            line = self.lines[lane]
            del line[bisect_left(line, (order.key(self.policy, run), run.id))]
            if not line:
                del self.lines[lane]
        elif run.state is RunState.HELD:
            del self.held[run.id]
        elif becomes.state not in ACTIVE:  # else it keeps its place
            del self.active[run.id]

    def _stand_anew(self) -> None:
        queued = list(self._queued())
        self.lines = {}
        for run in queued:
            lane = (run.user, order.band(self.policy, run))
            self.lines.setdefault(lane, []).append((order.key(self.policy, run), run.id))
        for line in self.lines.values():
            line.sort()

    def _queued(self) -> Iterator[Run]:
        return (self.runs[run_id] for line in self.lines.values() for _, run_id in line)

    def _switches(self, state: State) -> None:
        self.version, self.at = state.version, state.at
        self.paused, self.pause_why = state.paused, state.pause_why
        self.caps = dict(state.caps)
        self.reservations = state.calendar
        self.usage = dict(state.usage) if state.policy.ordering in MOVED else {}
        if state.nodes_changed != self._nodes_changed:
            self._nodes_changed = state.nodes_changed
            self.nodes: Mapping[str, Node] = dict(state.nodes)
            self._gpus = sum(len(node.gpus) for node in state.nodes.values())
        self._view = None
