"""Which rows a batch of events writes: derived from the events and the state they were reduced into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rota.adapters.store import rows, runrows
from rota.adapters.store.envs import EnvTexts, env_row
from rota.app.ports import KeyRecord, StoreBroken
from rota.core import codec
from rota.core import events as e
from rota.core.run import PastAttempt, Run
from rota.core.state import State

Params = list[tuple[Any, ...]]


@dataclass(slots=True)
class Changes:
    """Parameters of each statement, in the order in which the store executes them."""

    envs: Params = field(default_factory=list)
    events: Params = field(default_factory=list)
    new_runs: Params = field(default_factory=list)
    changed_runs: Params = field(default_factory=list)
    edited_runs: Params = field(default_factory=list)
    attempts: Params = field(default_factory=list)
    gone_nodes: Params = field(default_factory=list)
    nodes: Params = field(default_factory=list)
    settings: Params = field(default_factory=list)
    usage: Params = field(default_factory=list)
    reservations: Params = field(default_factory=list)
    ended_reservations: Params = field(default_factory=list)
    gone_reservations: Params = field(default_factory=list)
    gone_records: Params = field(default_factory=list)
    records: Params = field(default_factory=list)
    keys: Params = field(default_factory=list)


_SETTING_OF: dict[type[e.Event], str] = {
    e.PolicySet: "policy",
    e.SchedulingPaused: "paused",
    e.SchedulingResumed: "paused",
    e.ServerStarted: "server",
    e.GroupCapped: "caps",
}
_CHARGING = (e.AttemptPlanned, e.AttemptEnded)
_CHANGING_NODE = (e.NodeDrained, e.NodeResumed)


def changes(events: Sequence[e.Event], state: State, keys: Sequence[KeyRecord], texts: EnvTexts) -> Changes:
    found = Changes(keys=[rows.key_row(record) for record in keys])
    specs: dict[str, rows.SpecText] = {}  # of the runs submitted or edited in this batch
    new: set[str] = set()  # those submitted
    settings: set[str] = set()
    charged: set[str] = set()
    nodes, records, envs = _Nodes(), _Records(), _Envs(texts)
    seq = state.version - len(events)
    for event in events:
        seq += 1
        found.events.append(rows.event_row(seq, event, specs, envs.text))
        if isinstance(event, e.RunEvent):
            if isinstance(event, e.RunSubmitted):
                new.add(event.run_id)
            elif isinstance(event, _CHARGING):
                run = _touched(state, event.run_id)
                charged.add(run.user)
                if isinstance(event, e.AttemptEnded):
                    found.attempts.append(rows.attempt_row(run, _past(run, event.attempt_id)))
        elif type(event) in _SETTING_OF:
            settings.add(_SETTING_OF[type(event)])
        elif isinstance(event, e.ReservationMade):
            found.reservations.append(rows.reservation_row(event.reservation))
        elif isinstance(event, e.ReservationEnded):
            _ended(found, state, event.reservation_id)
        elif isinstance(event, e.RecordPut):
            records.note(seq, event)
        else:
            nodes.note(seq, event)
    found.gone_reservations += [(name,) for name in state.forgotten]
    _runs(found, state, new, specs)
    found.envs = list(envs.written.values())
    found.gone_nodes, found.nodes = nodes.rows(state)
    found.gone_records, found.records = records.gone(), list(records.written.values())
    if settings:
        found.settings = setting_rows(state, settings)
    found.usage = [usage_row(user, state) for user in charged if user in state.usage]
    return found


def _runs(found: Changes, state: State, new: set[str], specs: dict[str, rows.SpecText]) -> None:
    for run in state.touched.values():
        if run.id in new:
            found.new_runs.append(runrows.new_run_row(run, specs[run.id]))
            continue
        found.changed_runs.append(runrows.changed_run_row(run))
        if run.id in specs:
            found.edited_runs.append(runrows.edited_run_row(run, specs[run.id]))


def _ended(found: Changes, state: State, reservation_id: str) -> None:
    """Written or deleted after the new ones are in: it may be one of them."""
    past = state.past_reservations.get(reservation_id)
    if past is None:
        found.gone_reservations.append((reservation_id,))
    else:
        found.ended_reservations.append(rows.reservation_row(past))


def setting_rows(state: State, names: set[str]) -> Params:
    bodies = {name: rows.dumps(body) for name, body in rows.settings_of(state).items() if name in names}
    return [(name, body, rows.checksum(name, body)) for name, body in bodies.items()]


def usage_row(user: str, state: State) -> tuple[Any, ...]:
    usage = state.usage[user]
    return (rows.to_column(user), usage.gpu_s, usage.at, rows.checksum(user, float(usage.gpu_s), float(usage.at)))


def _touched(state: State, run_id: str) -> Run:
    run = state.touched.get(run_id)
    if run is None:
        raise StoreBroken(f"a bug: run {run_id} has an event but was not touched")
    return run


def _past(run: Run, attempt_id: str) -> PastAttempt:
    for past in reversed(run.past):
        if past.id == attempt_id:
            return past
    # a run remembers its newest KEPT_ATTEMPTS; that many cannot end in one batch, since each start is committed first
    raise StoreBroken(f"a bug: attempt {attempt_id} ended but its run does not remember it")


class _Nodes:
    """A node keeps its place in the order until it is removed; its place is the seq of the event that brought it."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.gone: set[str] = set()

    def note(self, seq: int, event: e.Event) -> None:
        if isinstance(event, e.NodeSeen):
            self.places.setdefault(event.node.id, seq)
        elif isinstance(event, e.NodeRemoved):
            self.places.pop(event.node_id, None)
            self.gone.add(event.node_id)
        elif isinstance(event, _CHANGING_NODE):
            self.places.setdefault(event.node_id, seq)
        else:
            raise StoreBroken(f"a bug: the store does not know what {type(event).__name__} changes")

    def rows(self, state: State) -> tuple[Params, Params]:
        written = []
        for node_id, place in self.places.items():
            body = rows.dumps(codec.encode(state.nodes[node_id]))
            written.append((rows.to_column(node_id), place, body, rows.checksum(node_id, body)))
        return [(rows.to_column(node_id),) for node_id in self.gone], written


class _Envs:
    """The environments this batch refers to."""

    def __init__(self, texts: EnvTexts) -> None:
        self._texts = texts
        self.written: dict[str, tuple[Any, ...]] = {}

    def text(self, seq: int, env: Mapping[str, str]) -> str:
        said, apart = self._texts.of(env)
        if apart:
            self.written[said] = env_row(seq, said, apart)
        return said


class _Records:
    """What is left of each record after the batch. One that goes and comes again is a new one."""

    def __init__(self) -> None:
        self.written: dict[tuple[str, str], tuple[Any, ...]] = {}
        self._gone: set[tuple[str, str]] = set()

    def note(self, seq: int, put: e.RecordPut) -> None:
        name = (put.kind, put.id)
        if not put.body:
            self.written.pop(name, None)
            self._gone.add(name)
            return
        first = self.written.get(name)
        row = rows.record_row(seq, put)
        self.written[name] = row if first is None else (*row[:3], *first[3:6], *row[6:])

    def gone(self) -> Params:
        return [(rows.to_column(kind), rows.to_column(record_id)) for kind, record_id in self._gone]
