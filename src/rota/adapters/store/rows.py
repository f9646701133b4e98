"""Runs, attempts, events and small bodies as rows, and back.

A row that does not say what was written (its sum is wrong) or that cannot be read raises Damaged, naming table and id.
"""

from __future__ import annotations

import json
import json.encoder
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar
from zlib import crc32

from rota.app.ports import KeyRecord, Record, StoreBroken, StoredEvent
from rota.core import codec
from rota.core import events as e
from rota.core.reservation import Reservation
from rota.core.resources import gpu_count
from rota.core.run import ENDED, Attempt, Dependency, PastAttempt, Run, RunState, Spec

T = TypeVar("T")
Row = Any  # a sequence of column values: a driver's tuple or SQLAlchemy's Row


def _make_dumps() -> Callable[[Any], str]:
    """JSONEncoder.encode, but for building the C encoder anew at each call: half the time for small bodies."""
    encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    write = make(None, encoder.default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True)
    return lambda value: "".join(write(value, 0))


dumps = _make_dumps()
loads = json.JSONDecoder().decode


_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)  # what decoding a wrong body may raise


class Damaged(StoreBroken):
    def __init__(self, table: str, row_id: object, why: str) -> None:
        super().__init__(f"table {table}, row {row_id!r}: {why}")


# -- text -----------------------------------------------------------------------------------------------------------
# JSON text is plain ASCII, but names stand in columns of their own: PostgreSQL takes no NUL, and no database takes the
# lone surrogates that stand for bytes outside UTF-8 in names from the system. U+001A marks such a character.
_ODD = re.compile("[\x00\x1a\ud800-\udfff]")
_MARKED = re.compile("\x1a([0-9a-f]{4})")


def to_column(text: str) -> str:
    if text.isascii() and text.isprintable():
        return str(text)
    return _ODD.sub(lambda odd: f"\x1a{ord(odd[0]):04x}", text)


def from_column(text: str) -> str:
    return _MARKED.sub(lambda mark: chr(int(mark[1], 16)), text) if "\x1a" in text else text


def checksum(*parts: object) -> int:
    return crc32("\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass"))


def spec_checksum(run_id: str, spec: str, env: str) -> int:
    return crc32(f"{run_id}\x1f{spec}\x1f{env}".encode())


# -- runs -----------------------------------------------------------------------------------------------------------
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
    raise TypeError("rows.py does not write every field of Run")


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


SpecText = tuple[str, str]  # the spec without its environment, and the environment: most runs of a sweep share that


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
    """Reads run rows, thousands in one go: equal specs and environments are decoded once and shared, and JSON texts are
    joined so that the decoder is called once and knows its keys."""

    def __init__(self) -> None:
        self._specs: dict[SpecText, Spec] = {}
        self._envs: dict[str, Any] = {}

    def read(self, row: Row) -> Run:
        return self.read_many([row])[0]

    def read_many(self, found: Sequence[Row]) -> list[Run]:
        for row in found:
            _verify(row)
        specs = self._read_specs(found)
        facts = _loads_many([row[10] for row in found], [row[1] for row in found], "facts")
        return [_run(row, spec, fact) for row, spec, fact in zip(found, specs, facts, strict=True)]

    def _read_specs(self, found: Sequence[Row]) -> list[Spec]:
        texts: list[SpecText] = [(row[7], row[8]) for row in found]
        if len(self._specs) > 10_000:  # hardly two are alike: do not keep all their texts
            self._specs.clear()
            self._envs.clear()
        unknown = {text: row[1] for text, row in zip(texts, found, strict=True) if text not in self._specs}
        bodies = _loads_many([spec for spec, _ in unknown], list(unknown.values()), "spec")
        for (text, run_id), body in zip(unknown.items(), bodies, strict=True):
            try:
                if text[1] != "{}":
                    body["env"] = self._env(text[1])
                self._specs[text] = codec.decode(Spec, body)
            except _UNREADABLE as error:
                raise Damaged("runs", run_id, f"its spec cannot be read: {error!r}") from error
        return [self._specs[text] for text in texts]

    def _env(self, text: str) -> Any:
        env = self._envs.get(text)
        if env is None:
            env = self._envs[text] = loads(text)
        return env


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
    *_, spec, env, spec_sum, facts, facts_sum = row
    if spec_sum != spec_checksum(row[1], spec, env):
        raise Damaged("runs", row[1], "its spec is not what was written")
    if facts_sum != crc32((_SUMMED % tuple(row[:7]) + facts).encode()):
        raise Damaged("runs", row[1], "its facts are not what was written")


def _run(row: Row, spec: Spec, facts: dict[str, Any]) -> Run:
    seq, run_id, user, state, priority, submitted_at, ended_at, *_ = row
    try:
        if len(facts) > 2:
            if "waiting_on" in facts:
                facts["waiting_on"] = tuple([codec.decode(Dependency, item) for item in facts["waiting_on"]])
            if "attempt" in facts:
                facts["attempt"] = codec.decode(Attempt, facts["attempt"])
            if "past" in facts:
                facts["past"] = tuple([codec.decode(PastAttempt, item) for item in facts["past"]])
            if "belief" in facts:
                facts["belief"] = tuple(facts["belief"])
        if "queued_at" not in facts:
            facts["queued_at"] = _queued_at(state, submitted_at)
        return Run(
            id=run_id,
            seq=seq,
            user=from_column(user),
            spec=spec,
            state=_STATES[state],
            priority=priority,
            submitted_at=submitted_at,
            ended_at=ended_at,
            **facts,
        )
    except _UNREADABLE as error:
        raise Damaged("runs", run_id, f"cannot be read: {error!r}") from error


# -- attempts -------------------------------------------------------------------------------------------------------
def attempt_row(run: Run, past: PastAttempt) -> tuple[Any, ...]:
    body = dumps(codec.encode(past))
    return (
        past.id,
        run.id,
        past.number,
        to_column(run.user),
        gpu_count(past.placement),
        past.planned_at,
        past.started_at,
        past.ended_at,
        str(past.exit.cause),
        past.exit.code,
        past.gpu_s,
        body,
        checksum(past.id, body),
    )


def read_attempt(row: Row) -> PastAttempt:
    attempt_id, body, sum_ = row
    return read_body("attempts", attempt_id, PastAttempt, body, sum_)


def read_body(table: str, row_id: str, cls: type[T], body: str, sum_: int) -> T:
    if sum_ != checksum(row_id, body):
        raise Damaged(table, row_id, "is not what was written")
    try:
        return codec.decode(cls, loads(body))
    except _UNREADABLE as error:
        raise Damaged(table, row_id, f"cannot be read: {error!r}") from error


# -- events ---------------------------------------------------------------------------------------------------------


def event_row(seq: int, event: e.Event, specs: dict[str, SpecText]) -> tuple[Any, ...]:
    """In the order of the table's columns. The text of a new or edited spec also goes into `specs`, for the row."""
    body = e.encode(event)
    at = float(body.pop("at"))
    by = to_column(body.pop("by", "rota"))
    run_id = body.pop("run_id", None)
    if isinstance(event, (e.RunSubmitted, e.RunEdited)):
        spec = body.pop("spec")
        env = dumps(spec.pop("env", {}))
        text = dumps(spec)
        specs[event.run_id] = (text, env)
        comma = "," if body else ""
        text = f'{dumps(body)[:-1]}{comma}"spec":{text[:-1]},"env":{env}}}}}'  # each encoded once, written twice
    else:
        text = dumps(body)
    kind, version = type(event).__name__, event.VERSION
    return (seq, at, kind, version, run_id, by, text, checksum(seq, at, kind, version, run_id, by, text))


def read_event(row: Row) -> StoredEvent:
    seq, at, kind, version, run_id, by, text, sum_ = row
    if sum_ != checksum(seq, at, kind, version, run_id, by, text):
        raise Damaged("events", seq, "is not what was written")
    try:
        body = loads(text)
        body["at"], body["by"] = at, from_column(by)
        if run_id is not None:
            body["run_id"] = run_id
        return StoredEvent(seq, e.decode(kind, version, body))
    except (e.UnknownEvent, *_UNREADABLE) as error:
        raise Damaged("events", seq, str(error)) from error


# -- keys -----------------------------------------------------------------------------------------------------------
def key_row(record: KeyRecord) -> tuple[Any, ...]:
    names = (to_column(record.principal), to_column(record.key), to_column(record.digest))
    return (*names, record.run_id, record.at)


def read_key(row: Row) -> KeyRecord:
    principal, key, digest, run_id, at = row
    return KeyRecord(from_column(principal), from_column(key), from_column(digest), run_id, at)


# -- records --------------------------------------------------------------------------------------------------------
def record_row(seq: int, put: e.RecordPut) -> tuple[Any, ...]:
    """In the order of the table's columns. The sum leaves out what the first writing set and later ones keep."""
    names = (to_column(put.kind), to_column(put.id), to_column(put.parent))
    return (*names, seq, put.at, to_column(put.by), put.body, checksum(*names, put.body))


def read_record(row: Row) -> Record:
    kind, record_id, parent, seq, at, by, body, sum_ = row
    if sum_ != checksum(kind, record_id, parent, body):
        raise Damaged("records", f"{kind} {record_id}", "is not what was written")
    try:
        known: dict[str, Any] = loads(body)
    except ValueError as error:
        raise Damaged("records", f"{kind} {record_id}", f"cannot be read: {error!r}") from error
    return Record(from_column(kind), from_column(record_id), from_column(parent), seq, at, from_column(by), known)


# -- reservations ---------------------------------------------------------------------------------------------------
def reservation_row(reservation: Reservation) -> tuple[Any, ...]:
    """Written once: a reservation is made and ended, never changed."""
    body = dumps(codec.encode(reservation))
    return (reservation.id, body, checksum(reservation.id, body))


# -- the head -------------------------------------------------------------------------------------------------------
def head_sum(epoch: int, version: int, at: float, next_seq: int, live: int) -> int:
    return checksum(epoch, version, float(at), next_seq, live)


def settings_of(state: Any) -> Mapping[str, Any]:
    """The settings a state holds, by key; each is one row."""
    return {
        "policy": codec.encode(state.policy),
        "paused": {"paused": state.paused, "why": state.pause_why},
        "server": {"epoch": state.epoch, "boot_id": state.boot_id},
        "caps": dict(state.caps),
    }
