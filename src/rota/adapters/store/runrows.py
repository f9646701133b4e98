"""Runs as rows, and back: the table that is written with every change and read whole at a start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any
from zlib import crc32

from rota.adapters.store.envs import EnvReader
from rota.adapters.store.rows import UNREADABLE, Damaged, Row, SpecText, dumps, from_column, to_column
from rota.adapters.store.specs import MOST_KEPT, SpecReader, loads_many
from rota.core import codec
from rota.core.run import ENDED, Attempt, Dependency, PastAttempt, Run, RunState, Spec

RUN_COLUMNS = [
    "seq",
    "id",
    "user",
    "state",
    "priority",
    "submitted_at",
    "ended_at",
    "spec",
    "env",
    "spec_sum",
    "facts",
    "facts_sum",
]
# the columns before the spec, in their order, and the facts
_SUMMED = "%s\x1f%s\x1f%s\x1f%s\x1f%s\x1f%s\x1f%s\x1f%s"
_make_runs = codec.bulk_maker(Run)
_STATES = {str(state): state for state in RunState}
_HELD = str(RunState.HELD)
_UNSAID = -1.0  # no time: the facts do not say it


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the text of facts says of a run; many have the same."""

    expected_s: float
    expected_from: str
    waiting_on: tuple[Dependency, ...] = ()
    not_before: float = 0.0
    retries: int = 0
    attempts_made: int = 0
    attempt: Attempt | None = None
    past: tuple[PastAttempt, ...] = ()
    why: str = ""
    archived_at: float | None = None
    queued_at: float | None = _UNSAID
    attained_s: float = 0.0
    belief: tuple[float, ...] = ()


# A new field of Run must not get lost here, and `_values` has them in this order.
_BEFORE = ["id", "seq", "user", "spec", "state", "priority", "submitted_at"]
_IN_FACTS = [field.name for field in fields(_Facts)]
_AT = _IN_FACTS.index("why")
if [field.name for field in fields(Run)] != [*_BEFORE, *_IN_FACTS[:_AT], "ended_at", *_IN_FACTS[_AT:]]:
    raise TypeError("runrows.py does not write every field of Run")


def spec_checksum(run_id: str, spec: str, env: str) -> int:
    return crc32(f"{run_id}\x1f{spec}\x1f{env}".encode())


def facts_text(run: Run) -> str:
    """By hand, since this runs for every change of every run. Defaults are left out, as the codec does."""
    facts: dict[str, Any] = {"expected_s": run.expected_s, "expected_from": run.expected_from}
    if run.waiting_on:
        facts["waiting_on"] = [codec.encode(dependency) for dependency in run.waiting_on]
    if run.not_before:
        facts["not_before"] = run.not_before
    if run.retries:
        facts["retries"] = run.retries
    if run.attempts_made:
        facts["attempts_made"] = run.attempts_made
    if run.attempt is not None:
        facts["attempt"] = codec.encode(run.attempt)
    if run.past:
        facts["past"] = [codec.encode(past) for past in run.past]
    if run.why:
        facts["why"] = run.why
    if run.archived_at is not None:
        facts["archived_at"] = run.archived_at
    if run.queued_at != _queued_at(run.state, run.submitted_at):
        facts["queued_at"] = run.queued_at
    if run.attained_s:
        facts["attained_s"] = run.attained_s
    if run.belief:
        facts["belief"] = run.belief
    return dumps(facts)


def _queued_at(state: str, submitted_at: float) -> float | None:
    """Of a run whose row does not say: most get into line at once, and older rows know no better."""
    return None if state == _HELD else submitted_at


def facts_checksum(*values: object) -> int:
    """Of the columns before the spec, and of the facts."""
    return crc32((_SUMMED % values).encode())


def _facts_sum(run: Run, facts: str) -> int:
    ended_at = None if run.ended_at is None else float(run.ended_at)
    written = (run.seq, run.id, to_column(run.user), run.state, run.priority, float(run.submitted_at), ended_at)
    return facts_checksum(*written, facts)


def new_run_row(run: Run, text: SpecText) -> tuple[Any, ...]:
    """In the order of the table's columns."""
    facts = facts_text(run)
    spec, env = text
    return (
        run.seq,
        run.id,
        to_column(run.user),
        to_column(run.spec.name),
        str(run.state),
        0 if run.state in ENDED else 1,
        run.priority,
        run.spec.request.gpus,
        run.submitted_at,
        run.ended_at,
        spec,
        env,
        spec_checksum(run.id, spec, env),
        facts,
        _facts_sum(run, facts),
        to_column(run.spec.group),
        0 if run.archived_at is None else 1,
    )


def changed_run_row(run: Run) -> tuple[Any, ...]:
    """In the order of the UPDATE's parameters."""
    facts = facts_text(run)
    live = 0 if run.state in ENDED else 1
    archived = 0 if run.archived_at is None else 1
    return (str(run.state), live, run.priority, run.ended_at, facts, _facts_sum(run, facts), archived, run.seq)


def edited_run_row(run: Run, text: SpecText) -> tuple[Any, ...]:
    """What changes of the spec's columns, in the order of that UPDATE's parameters."""
    spec, env = text
    name, group = to_column(run.spec.name), to_column(run.spec.group)
    return (name, spec, env, spec_checksum(run.id, spec, env), group, run.seq)


class RunReader:
    """Reads run rows, thousands in one go: what many have in common is decoded once."""

    def __init__(self, envs: EnvReader) -> None:
        self._specs = SpecReader(envs)
        self._facts: dict[str, _Facts] = {}
        self._users: dict[str, str] = {}

    def read(self, row: Row) -> Run:
        return self.read_many([row])[0]

    def read_many(self, found: Sequence[Row]) -> list[Run]:
        if not found:
            return []
        _verify(found)
        _, run_ids, _, _, _, _, _, texts, envs, _, facts, _ = zip(*found, strict=True)
        specs = self._specs.read_many(run_ids, texts, envs)
        self._read_facts(run_ids, facts)
        return _make_runs([self._values(row, spec) for row, spec in zip(found, specs, strict=True)])

    def _read_facts(self, run_ids: Sequence[str], texts: Sequence[str]) -> None:
        if len(self._facts) > MOST_KEPT:
            self._facts.clear()
        unknown = {text: run_id for text, run_id in zip(texts, run_ids, strict=True) if text not in self._facts}
        bodies = loads_many([*unknown], [*unknown.values()], "facts")
        for (text, run_id), body in zip(unknown.items(), bodies, strict=True):
            try:
                self._facts[text] = codec.decode(_Facts, body)
            except UNREADABLE as error:
                raise Damaged("runs", run_id, f"its facts cannot be read: {error!r}") from error

    def _values(self, row: Row, spec: Spec) -> tuple[Any, ...]:
        """Return the fields of a run in their order."""
        seq, run_id, column, state, priority, submitted_at, ended_at, _, _, _, text, _ = row
        facts = self._facts[text]
        user = self._users.get(column)
        if user is None:
            user = self._users[column] = from_column(column)
        if state not in _STATES:
            raise Damaged("runs", run_id, f"there is no state {state!r}")
        return (
            run_id,
            seq,
            user,
            spec,
            _STATES[state],
            priority,
            submitted_at,
            facts.expected_s,
            facts.expected_from,
            facts.waiting_on,
            facts.not_before,
            facts.retries,
            facts.attempts_made,
            facts.attempt,
            facts.past,
            ended_at,
            facts.why,
            facts.archived_at,
            _queued_at(state, submitted_at) if facts.queued_at == _UNSAID else facts.queued_at,
            facts.attained_s,
            facts.belief,
        )


def _verify(found: Sequence[Row]) -> None:
    for seq, run_id, user, state, priority, submitted_at, ended_at, spec, env, spec_sum, facts, facts_sum in found:
        if spec_sum != crc32(f"{run_id}\x1f{spec}\x1f{env}".encode()):
            raise Damaged("runs", run_id, "its spec is not what was written")
        written = (seq, run_id, user, state, priority, submitted_at, ended_at, facts)
        if facts_sum != crc32((_SUMMED % written).encode()):
            raise Damaged("runs", run_id, "its facts are not what was written")
