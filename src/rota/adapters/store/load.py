"""The state from the projection rows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Select, select
from sqlalchemy.exc import DBAPIError

from rota.adapters.store import rows, runrows
from rota.adapters.store import schema as s
from rota.adapters.store.envs import EnvReader
from rota.adapters.store.rows import Damaged
from rota.core import codec
from rota.core.node import Node
from rota.core.policy import Policy
from rota.core.predict import relearn
from rota.core.reservation import Reservation
from rota.core.run import ENDED
from rota.core.state import State
from rota.core.usage import Usage

CHUNK = 500  # rows decoded in one go: few enough that they stay in the processor's cache
REMEMBERED = 2_000  # ended runs that predictions learn from


def load_state(connection: Connection) -> State:
    """Everything inside one read transaction of the caller."""
    state = State()
    with collector_off():
        live = _head(connection, state)
        _settings(connection, state)
        _nodes(connection, state)
        _usage(connection, state)
        _reservations(connection, state)
        reader = runrows.RunReader(EnvReader(connection))
        _runs(connection, state, reader, live)
        state.index_all()
        _history(connection, state, reader)
    return state


@contextmanager
def collector_off() -> Iterator[None]:
    """Loading makes a hundred thousand objects and no garbage; the collector would walk them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _head(connection: Connection, state: State) -> int:
    row = connection.execute(select(s.head).where(s.head.c.id == 1)).one_or_none()
    if row is None:
        raise Damaged("head", 1, "is missing")
    _, epoch, version, at, next_seq, live, sum_ = row
    if sum_ != rows.head_sum(epoch, version, at, next_seq, live):
        raise Damaged("head", 1, "is not what was written")
    state.version, state.at, state.next_seq = version, at, next_seq
    count: int = live
    return count


def _settings(connection: Connection, state: State) -> None:
    found: dict[str, Any] = {}
    for key, body, sum_ in connection.execute(select(s.settings)):
        if sum_ != rows.checksum(key, body):
            raise Damaged("settings", key, "is not what was written")
        found[key] = rows.loads(body)
    missing = rows.settings_of(state).keys() - found.keys()
    if missing:
        raise Damaged("settings", ", ".join(sorted(missing)), "is missing")
    try:
        state.policy = codec.decode(Policy, found["policy"])
        state.paused, state.pause_why = found["paused"]["paused"], found["paused"]["why"]
        state.caps = found["caps"]
        state.epoch, state.boot_id = found["server"]["epoch"], found["server"]["boot_id"]
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged("settings", ", ".join(found), f"cannot be read: {error!r}") from error


def _nodes(connection: Connection, state: State) -> None:
    for column, _, body, sum_ in connection.execute(select(s.nodes).order_by(s.nodes.c.position)):
        node_id = rows.from_column(column)
        state.nodes[node_id] = rows.read_body("nodes", node_id, Node, body, sum_)


def _usage(connection: Connection, state: State) -> None:
    for column, gpu_s, at, sum_ in connection.execute(select(s.usage)):
        user = rows.from_column(column)
        if sum_ != rows.checksum(user, gpu_s, at):
            raise Damaged("usage", user, "is not what was written")
        state.usage[user] = Usage(gpu_s, at)


def _reservations(connection: Connection, state: State) -> None:
    for name, body, sum_ in connection.execute(select(s.reservations)):
        one = rows.read_body("reservations", name, Reservation, body, sum_)
        (state.reservations if one.counted_until is None else state.past_reservations)[name] = one


def _runs(connection: Connection, state: State, reader: runrows.RunReader, live: int) -> None:
    columns = [s.runs.c[name] for name in runrows.RUN_COLUMNS]
    statement = select(*columns).where(s.runs.c.live == 1).order_by(s.runs.c.seq)
    for chunk in _chunks(connection, statement):
        for run in reader.read_many(chunk):
            if run.state in ENDED:
                raise Damaged("runs", run.id, f"is {run.state} and yet marked live")
            state.runs[run.id] = run
    if len(state.runs) != live:
        raise Damaged("runs", "live", f"{len(state.runs)} live runs found, {live} were written")


def _chunks(connection: Connection, statement: Select[Any]) -> Iterator[list[Any]]:
    """Yield rows as the driver's own tuples: SQLAlchemy's wrapping of a row takes as long as reading it."""
    text = str(statement.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True}))
    result = connection.exec_driver_sql(text)
    cursor: Any = result.cursor
    try:
        while chunk := cursor.fetchmany(CHUNK):
            yield chunk
    except connection.dialect.loaded_dbapi.Error as error:
        raise DBAPIError(None, None, error) from error
    finally:
        result.close()


def _history(connection: Connection, state: State, reader: runrows.RunReader) -> None:
    columns = [s.runs.c[name] for name in runrows.RUN_COLUMNS]
    newest = select(*columns).where(s.runs.c.live == 0).order_by(s.runs.c.ended_at.desc()).limit(REMEMBERED)
    for run in reversed(reader.read_many(connection.execute(newest).all())):
        relearn(state.history, run)
