"""Attempts, events and small bodies as rows, and back; and the text and the sums of all rows. Runs: runrows.py.

A row that does not say what was written (its sum is wrong) or that cannot be read raises Damaged, naming table and id.
"""

from __future__ import annotations

import json
import json.encoder
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from zlib import crc32

from rota.adapters.store import kept
from rota.app.ports import KeyRecord, Record, StoreBroken, StoredEvent
from rota.core import codec
from rota.core import events as e
from rota.core.reservation import Reservation
from rota.core.resources import gpu_count
from rota.core.run import PastAttempt, Run

T = TypeVar("T")
Row = Any  # a sequence of column values: a driver's tuple or SQLAlchemy's Row
SpecText = tuple[str, str]  # the spec without its environment, and the environment, or where it is: see envs


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


UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)  # what decoding a wrong body may raise


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
    except UNREADABLE as error:
        raise Damaged(table, row_id, f"cannot be read: {error!r}") from error


# -- events ---------------------------------------------------------------------------------------------------------


def event_row(
    seq: int, event: e.Event, specs: dict[str, SpecText], env_text: Callable[[int, Mapping[str, str]], str]
) -> tuple[Any, ...]:
    """In the order of the table's columns. The text of a new or edited spec also goes into `specs`, for the row.
    `env_text` says what stands for an environment."""
    body = e.encode(event)
    at = float(body.pop("at"))
    by = to_column(body.pop("by", "rota"))
    run_id = body.pop("run_id", None)
    if isinstance(event, (e.RunSubmitted, e.RunEdited)):
        spec = body.pop("spec")
        spec.pop("env", None)
        env = env_text(seq, event.spec.env)
        text = dumps(spec)
        specs[event.run_id] = (text, env)
        comma = "," if body else ""
        env = env if env[0] == "{" else f'"{env}"'
        text = f'{dumps(body)[:-1]}{comma}"spec":{text[:-1]},"env":{env}}}}}'  # each encoded once, written twice
    else:
        text = dumps(body)
    kind, version = type(event).__name__, event.VERSION
    return (seq, at, kind, version, run_id, by, text, checksum(seq, at, kind, version, run_id, by, text))


def read_event(row: Row, env_of: Callable[[str], Mapping[str, str]]) -> StoredEvent:
    """`env_of` finds an environment that is stored apart."""
    seq, at, kind, version, run_id, by, text, sum_ = row
    if sum_ != checksum(seq, at, kind, version, run_id, by, text):
        raise Damaged("events", seq, "is not what was written")
    try:
        body = loads(text)
        body["at"], body["by"] = at, from_column(by)
        if run_id is not None:
            body["run_id"] = run_id
        spec = body.get("spec")
        if spec is not None and isinstance(spec.get("env"), str):
            spec["env"] = env_of(spec["env"])
        return StoredEvent(seq, e.decode(kind, version, body))
    except (e.UnknownEvent, *UNREADABLE) as error:
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
        known: dict[str, Any] = kept.decode(body, f"{kind} {record_id}")
    except ValueError as error:
        raise Damaged("records", f"{kind} {record_id}", f"cannot be read: {error!r}") from error
    names = from_column(kind), from_column(record_id), from_column(parent)
    return Record(*names, seq, at, from_column(by), known, size=len(body))


# -- reservations ---------------------------------------------------------------------------------------------------
def reservation_row(reservation: Reservation) -> tuple[Any, ...]:
    """Written when it is made, and again when it ends if it counts on: see `core.reservation`."""
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
