"""Which runs belong to a sweep, and how each of them fares: read once, then kept true by listening.

A sweep may have ten thousand runs and agents ask for it every few seconds, so asking must not read them all again.
Listening costs the writer's thread the same however many sweeps are known: an event reaches the sweep of its run, and
the few that are being read at the moment.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from threading import Lock

from rota.app.ports import RunFilter
from rota.app.service import Service
from rota.core import events as e
from rota.core.run import RunState

PAGE = 1000
# Kept in mind of all sweeps together; the sweep that was not asked for longest is forgotten first.
MOST_RUNS = 200_000
MOST_GROUPS = 5_000  # with or without runs: five of the largest pages of `GET /sweeps`


class _Reading:
    """What is heard while one sweep is being read."""

    __slots__ = ("edited", "joined", "name", "news")

    def __init__(self, name: str) -> None:
        self.name = name
        self.news: dict[str, RunState] = {}  # of whatever run: whose it is, is not known yet
        self.joined: list[str] = []  # runs submitted into this sweep
        self.edited: dict[str, str] = {}  # the sweeps of runs that were edited, which may be others than before

    def is_sure(self, found: Mapping[str, RunState]) -> bool:
        """Whether no run joined or left the sweep by an edit, before or after its page was read."""
        return all((name == self.name) == (run_id in found) for run_id, name in self.edited.items())


class Groups:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = Lock()
        self._groups: OrderedDict[str, dict[str, RunState]] = OrderedDict()  # runs in the order of submission
        self._group_of: dict[str, str] = {}  # of the runs of the groups above
        self._readings: set[_Reading] = set()
        service.subscribe(self._hear)

    def states(self, name: str) -> Mapping[str, RunState]:
        """Run ids and states, oldest first."""
        with self._lock:
            known = self._groups.get(name)
            if known is not None:
                self._groups.move_to_end(name)
                return dict(known)
            reading = _Reading(name)
            self._readings.add(reading)
        try:
            rows = self._read(name)
            with self._lock:
                found = {run_id: reading.news.get(run_id, state) for run_id, state in rows}
                found |= {run_id: reading.news[run_id] for run_id in reading.joined if run_id not in found}
                if reading.is_sure(found):
                    self._keep(name, dict(found))
            return found
        finally:
            with self._lock:
                self._readings.discard(reading)

    def _read(self, name: str) -> list[tuple[str, RunState]]:
        found: list[tuple[str, RunState]] = []
        before, more = None, True
        while more:
            page, more = self._service.runs_page(RunFilter(group=name, before=before, limit=PAGE))
            found += [(run.id, run.state) for run in page]
            before = page[-1].seq if page else None
        return found[::-1]

    def _keep(self, name: str, states: dict[str, RunState]) -> None:
        self._drop(name)  # two may have read it at once
        # A commit can be read before it is heard. A run that has moved meanwhile was read in both of its sweeps.
        others = {other for run_id in states if (other := self._group_of.get(run_id)) is not None}
        if others:
            for other in others:
                self._drop(other)
            return
        self._groups[name] = states
        self._group_of.update(dict.fromkeys(states, name))
        while len(self._groups) > MOST_GROUPS or (len(self._group_of) > MOST_RUNS and len(self._groups) > 1):
            self._drop(next(iter(self._groups)))

    def _drop(self, name: str) -> None:
        for run_id in self._groups.pop(name, ()):
            if self._group_of.get(run_id) == name:
                del self._group_of[run_id]

    def _hear(self, first: int, events: Sequence[e.Event]) -> None:
        """Take in a batch, on the writer's thread. It is sorted out before the lock is taken: readers wait for that."""
        if not self._groups and not self._readings:
            return
        changed: dict[str, RunState] = {}
        submitted: defaultdict[str, list[str]] = defaultdict(list)
        edited: list[e.RunEdited] = []
        for event in events:
            if isinstance(event, e.RunEdited):
                edited.append(event)
            elif isinstance(event, e.RunEvent) and (state := state_after(event)) is not None:
                changed[event.run_id] = state
                if isinstance(event, e.RunSubmitted) and event.spec.group:
                    submitted[event.spec.group].append(event.run_id)
        with self._lock:
            for name, run_ids in submitted.items():
                if name in self._groups:
                    self._group_of.update(dict.fromkeys(run_ids, name))
            for run_id, state in changed.items():
                group = self._group_of.get(run_id)
                if group is not None:
                    self._groups[group][run_id] = state
            for reading in self._readings:
                reading.news.update(changed)
                reading.joined += submitted.get(reading.name, ())
            for event in edited:
                self._regroup(event)

    def _regroup(self, event: e.RunEdited) -> None:
        """A run that changed its sweep: what was known of both is read again when asked for. The old one of a run whose
        sweep is not known here is no matter: it is not kept in mind either."""
        old, new = self._group_of.get(event.run_id, ""), event.spec.group
        for reading in self._readings:
            reading.edited[event.run_id] = new
        if old == new:
            return
        self._drop(old)
        self._drop(new)


def state_after(event: e.RunEvent) -> RunState | None:
    """The state an event leaves its run in; None = as it was."""
    match event:
        case e.RunSubmitted(held=held):
            return RunState.HELD if held else RunState.QUEUED
        case e.RunHeld():
            return RunState.HELD
        case e.RunReleased():
            return RunState.QUEUED
        case e.AttemptPlanned():
            return RunState.STARTING
        case e.AttemptStarted():
            return RunState.RUNNING
        case e.RunEnded(state=state):
            return state
        case e.AttemptEnded(next=state):
            return state
    return None
