"""Which runs belong to a sweep, and how each of them fares: read once, then kept true by listening.

A sweep may have ten thousand runs and agents ask for it every few seconds, so asking must not read them all again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock

from rota.app.ports import RunFilter
from rota.app.service import Service
from rota.core import events as e
from rota.core.run import RunState

PAGE = 1000
MOST_RUNS = 200_000  # kept in mind, of all sweeps together; who was not asked for longest is forgotten first


class _Group:
    __slots__ = ("news", "ready", "states")

    def __init__(self) -> None:
        self.ready = False
        self.states: dict[str, RunState] = {}  # in the order of submission
        self.news: dict[str, RunState] = {}  # of whatever run, while it is being read


class Groups:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = Lock()
        self._groups: OrderedDict[str, _Group] = OrderedDict()
        self._group_of: dict[str, str] = {}  # of the runs of the groups above
        service.subscribe(self._hear)

    def states(self, name: str) -> Mapping[str, RunState]:
        """Run ids and states, oldest first."""
        with self._lock:
            known = self._groups.get(name)
            if known is not None and known.ready:
                self._groups.move_to_end(name)
                return dict(known.states)
            group = self._groups[name] = _Group()
        rows = self._read(name)
        with self._lock:
            group.states = {run_id: group.news.get(run_id, state) for run_id, state in rows}
            group.states |= {run_id: group.news[run_id] for run_id in self._came_meanwhile(name, group)}
            if self._groups.get(name) is group:  # nothing happened that makes it worthless
                group.news.clear()
                group.ready = True
                self._group_of.update(dict.fromkeys(group.states, name))
                self._forget()
            return dict(group.states)

    def _came_meanwhile(self, name: str, group: _Group) -> list[str]:
        return [run_id for run_id in group.news if self._group_of.get(run_id) == name and run_id not in group.states]

    def _read(self, name: str) -> list[tuple[str, RunState]]:
        found: list[tuple[str, RunState]] = []
        before, more = None, True
        while more:
            page, more = self._service.runs_page(RunFilter(group=name, before=before, limit=PAGE))
            found += [(run.id, run.state) for run in page]
            before = page[-1].seq if page else None
        return found[::-1]

    def _forget(self) -> None:
        while len(self._group_of) > MOST_RUNS and len(self._groups) > 1:
            self._drop(next(iter(self._groups)))

    def _drop(self, name: str) -> None:
        group = self._groups.pop(name, None)
        for run_id in group.states if group is not None else ():
            self._group_of.pop(run_id, None)

    def _hear(self, first: int, events: Sequence[e.Event]) -> None:
        """On the writer's thread."""
        if self._groups:
            with self._lock:
                for event in events:
                    if isinstance(event, e.RunEvent):
                        self._take(event)

    def _take(self, event: e.RunEvent) -> None:
        if isinstance(event, e.RunEdited):
            self._regroup(event)
            return
        if isinstance(event, e.RunSubmitted) and event.spec.group in self._groups:
            self._group_of[event.run_id] = event.spec.group
        state = state_after(event)
        if state is None:
            return
        name = self._group_of.get(event.run_id)
        group = self._groups.get(name) if name is not None else None
        if group is not None and group.ready:
            group.states[event.run_id] = state
        for other in self._groups.values():
            if not other.ready:
                other.news[event.run_id] = state

    def _regroup(self, event: e.RunEdited) -> None:
        """A run that changed its sweep: what was known of both is read again when asked for."""
        old, new = self._group_of.get(event.run_id, ""), event.spec.group
        if old == new:
            return
        unsure = [name for name, group in self._groups.items() if not group.ready]
        for name in (old, new, *unsure):
            self._drop(name)


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
