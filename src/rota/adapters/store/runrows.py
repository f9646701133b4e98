"""Runs as rows, and back: the table that is written with every change and read whole at a start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any
from zlib import crc32

from rota.adapters.store.envs import EnvReader
from rota.adapters.store.rows import UNREADABLE, Damaged, Row, SpecText, dumps, from_column, loads, to_column
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
# of the columns before the spec, in their order
_SUMMED = "%s\x1f%s\x1f%s\x1f%s\x1f%s\x1f%s\x1f%s\x1f"
_make_run = codec.maker(Run)
# Texts that a reader remembers; where there are more, hardly two are alike.
MOST_KEPT = 10_000
_STATES = {str(state): state for state in RunState}
_IN_COLUMNS = {"seq", "id", "user", "state", "priority", "submitted_at", "ended_at", "spec"}
_IN_FACTS = {
    "expected_s",
    "expected_from",
    "waiting_on",
    "not_before",
    "retries",
    "attempts_made",
    "attempt",
    "past",
    "why",
    "archived_at",
    "queued_at",
    "attained_s",
    "belief",
}
if {field.name for field in fields(Run)} != _IN_COLUMNS | _IN_FACTS:  # a new field of Run must not get lost here
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
    return None if state == RunState.HELD else submitted_at


def _facts_sum(run: Run, facts: str) -> int:
    ended_at = None if run.ended_at is None else float(run.ended_at)
    written = (run.seq, run.id, to_column(run.user), run.state, run.priority, float(run.submitted_at), ended_at)
    return crc32((_SUMMED % written + facts).encode())


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
    """Reads run rows, thousands in one go: equal environments and facts are decoded once, and JSON texts are joined so
    that the decoder is called once and knows its keys."""

    def __init__(self, envs: EnvReader) -> None:
        self._envs = envs
        self._facts: dict[str, dict[str, Any]] = {}

    def read(self, row: Row) -> Run:
        return self.read_many([row])[0]

    def read_many(self, found: Sequence[Row]) -> list[Run]:
        for row in found:
            _verify(row)
        specs = self._read_specs(found)
        facts = self._read_facts(found)
        return [_run(row, spec, facts[row[10]]) for row, spec in zip(found, specs, strict=True)]

    def _read_specs(self, found: Sequence[Row]) -> list[Spec]:
        bodies = _loads_many([row[7] for row in found], [row[1] for row in found], "spec")
        self._envs.fetch({row[8] for row in found})
        specs = []
        for row, body in zip(found, bodies, strict=True):
            try:
                if row[8] != "{}":
                    body["env"] = self._envs.of(row[8])
                specs.append(codec.decode(Spec, body))
            except UNREADABLE as error:
                raise Damaged("runs", row[1], f"its spec cannot be read: {error!r}") from error
        return specs

    def _read_facts(self, found: Sequence[Row]) -> dict[str, dict[str, Any]]:
        """Return what each text of facts says, those of earlier rows too. It is shared, so nobody may change it."""
        if len(self._facts) > MOST_KEPT:
            self._facts.clear()
        unknown = {row[10]: row[1] for row in found if row[10] not in self._facts}
        self._facts |= zip(unknown, _loads_many(list(unknown), list(unknown.values()), "facts"), strict=True)
        return self._facts


def _loads_many(texts: list[str], run_ids: list[str], what: str) -> list[Any]:
    try:
        together: list[Any] = loads(f"[{','.join(texts)}]")
        if len(together) == len(texts):
            return together
    except ValueError:
        pass
    for text, run_id in zip(texts, run_ids, strict=True):  # which of them?
        try:
            loads(text)
        except ValueError as error:
            raise Damaged("runs", run_id, f"its {what} cannot be read: {error!r}") from error
    raise Damaged("runs", "; ".join(run_ids[:3]), f"their {what} cannot be read together")


def _verify(row: Row) -> None:
    seq, run_id, user, state, priority, submitted_at, ended_at, spec, env, spec_sum, facts, facts_sum = row
    if spec_sum != crc32(f"{run_id}\x1f{spec}\x1f{env}".encode()):
        raise Damaged("runs", run_id, "its spec is not what was written")
    if facts_sum != crc32((_SUMMED % (seq, run_id, user, state, priority, submitted_at, ended_at) + facts).encode()):
        raise Damaged("runs", run_id, "its facts are not what was written")


def _run(row: Row, spec: Spec, facts: Mapping[str, Any]) -> Run:
    seq, run_id, user, state, priority, submitted_at, ended_at, *_ = row
    try:
        known = {
            "id": run_id,
            "seq": seq,
            "user": from_column(user),
            "spec": spec,
            "state": _STATES[state],
            "priority": priority,
            "submitted_at": submitted_at,
            "ended_at": ended_at,
            "queued_at": _queued_at(state, submitted_at),
            **facts,
        }
        if len(facts) > 2:
            if "waiting_on" in facts:
                known["waiting_on"] = tuple([codec.decode(Dependency, item) for item in facts["waiting_on"]])
            if "attempt" in facts:
                known["attempt"] = codec.decode(Attempt, facts["attempt"])
            if "past" in facts:
                known["past"] = tuple([codec.decode(PastAttempt, item) for item in facts["past"]])
            if "belief" in facts:
                known["belief"] = tuple(facts["belief"])
        return _make_run(known)
    except UNREADABLE as error:
        raise Damaged("runs", run_id, f"cannot be read: {error!r}") from error
