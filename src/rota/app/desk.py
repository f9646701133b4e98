"""Where commands are worked on: the state, the time, and the events written so far in this batch.

A handler reads the state, refuses or writes events; each event is reduced at once, so that the next command of the same
batch already sees it. Nothing is acknowledged before the whole batch is committed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rota.app.accounts import ONE_FOR_ALL, Accounts
from rota.app.authz import Principal
from rota.app.budget import Budget
from rota.app.disk_use import DiskUse
from rota.app.envs import SharedEnvs
from rota.app.errors import Conflict, Invalid, NoSpace, NotFound
from rota.app.ports import KeyRecord, Record, Store
from rota.core.events import Event, RunEvent
from rota.core.reduce import reduce
from rota.core.run import Run
from rota.core.state import State

MAX_WHY = 1000
NewId = Callable[[float], str]  # at that time


def reason(given: str, otherwise: str = "") -> str:
    """Why somebody did it: a line for people, kept with the run, its events and its rows."""
    if len(given) > MAX_WHY or "\0" in given:
        raise Invalid(f"why: use at most {MAX_WHY} characters, and no NUL", "why")
    return given or otherwise


class Desk:
    def __init__(
        self,
        state: State,
        store: Store,
        now: float,
        tick: float,
        new_id: NewId,
        *,
        kinds: dict[tuple[str, str], int] | None = None,
        accounts: Accounts = ONE_FOR_ALL,
        budget: Budget | None = None,
        envs: SharedEnvs | None = None,
        shortage: str = "",
        checkpoints: DiskUse | None = None,
        watched_from: float = math.inf,
    ) -> None:
        self.state = state
        self.store = store
        self.now = max(now, state.at)  # events never go back in time, whatever the clock does
        self.tick = tick
        self.watched_from = watched_from  # since which tick this server has watched the attempts; inf = not at all
        self._new_id = new_id
        self.accounts = accounts
        self.budget = budget or Budget()
        self.envs = envs or SharedEnvs()
        self.checkpoints = checkpoints  # what each person's take on the disk
        self.shortage = shortage  # of space on the disk; "" = there is room
        self.events: list[Event] = []
        self.keys: dict[tuple[str, str], KeyRecord] = {}
        self.records: dict[tuple[str, str], Record | None] = {}  # as this batch leaves them; None = gone
        # how many records of each kind there are, by each caller and ("") by all, once counted
        self.kinds: dict[tuple[str, str], int] = {} if kinds is None else kinds

    def trial(self, state: State) -> Desk:
        """Return a desk of this moment on a copy of the state, for another thread to try something out on once this
        batch is durable: its keys and records are then found in the store."""
        return Desk(
            state,
            self.store,
            self.now,
            self.tick,
            self._new_id,
            kinds=dict(self.kinds),
            accounts=self.accounts,
            budget=self.budget,
            shortage=self.shortage,
            checkpoints=self.checkpoints,
        )

    def must_have_space(self) -> None:
        if self.shortage:
            raise NoSpace(self.shortage)

    def new_id(self) -> str:
        return self._new_id(self.now)

    def write(self, event: Event) -> None:
        reduce(self.state, event)
        self.events.append(event)

    def amend(self, event: RunEvent, changed: Run) -> Run:
        """Write an event that changes a run which may have ended and left the state: then only its row is rewritten."""
        self.write(event)
        if changed.id not in self.state.runs:
            self.state.touched[changed.id] = changed
        return self.any(changed.id)

    def live(self, run_id: str) -> Run:
        """A run that has not ended, or a refusal that tells unknown from ended."""
        run = self.state.runs.get(run_id)
        if run is None:
            ended = self.any(run_id)
            raise Conflict(f"run {run_id} has already ended ({ended.state})", "run_id")
        return run

    def any(self, run_id: str) -> Run:
        run = self.state.runs.get(run_id) or self.state.touched.get(run_id) or self.store.run(run_id)
        if run is None:
            raise NotFound(f"no run {run_id[:50]!r}", "run_id")
        return run

    def key(self, who: Principal, key: str) -> KeyRecord | None:
        name = who.keeps_keys_as
        found = self.keys.get((name, key)) or self.store.key(name, key)
        if found is None and name != who.name:
            older = self.store.key(who.name, key)
            return older if older is not None and self._is_of(who, older) else None
        return found

    def used_keys(self, who: Principal, keys: Sequence[str]) -> Mapping[str, KeyRecord]:
        """Return those of many keys that were used before, also in this batch."""
        name = who.keeps_keys_as
        batch = {key: self.keys[name, key] for key in keys if (name, key) in self.keys}
        found = {**self.store.used_keys(name, keys), **batch} if keys else {}
        if keys and name != who.name:
            older = self.store.used_keys(who.name, [key for key in keys if key not in found])
            found |= {key: record for key, record in older.items() if self._is_of(who, record)}
        return found

    def _is_of(self, who: Principal, record: KeyRecord) -> bool:
        """Tell whether an agent's key of an older version, kept by the agent's name alone, made something of the person
        that the agent acts for: an agent of another person may have had that name."""
        made = self.state.reservations.get(record.run_id)
        if made is not None:
            return made.user == who.owner
        try:
            return self.any(record.run_id).user == who.owner
        except NotFound:
            return False

    def keep_key(self, who: Principal, key: str, digest: str, made_id: str) -> None:
        """Note what a key has made: a run or a reservation."""
        name = who.keeps_keys_as
        self.keys[name, key] = KeyRecord(name, key, digest, made_id, self.now)

    def record(self, kind: str, record_id: str) -> Record | None:
        name = (kind, record_id)
        return self.records[name] if name in self.records else self.store.record(kind, record_id)


Work = Callable[[Desk], Any]  # returns the answer; raises Refused


class Answer(Protocol):
    """Where the outcome of work on the desk goes: a Future, or something lighter."""

    def set_running_or_notify_cancel(self) -> bool:
        """False = nobody wants it any more, and it is not to begin."""

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...

    def done(self) -> bool: ...


@dataclass(slots=True)
class Item:
    work: Work
    answer: Answer
