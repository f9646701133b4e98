"""PostgreSQL, for those who have one: the same tables, one server at a time.

The writer's connection holds a session advisory lock for life. A second server is refused by it at the start; a server
that lost its connection must take it again before it writes, and is fenced if somebody else was faster.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import NullPool

from rota.adapters.store import schema
from rota.adapters.store.database import Lost
from rota.adapters.store.inspect import check_revision
from rota.adapters.store.migrate import migrate
from rota.adapters.store.store import SqlStore
from rota.app.ports import Fenced, StoreBroken, StoreBusy, StoreError, StoreFull, StoreUnusable

LOCK_WAIT_S = 2.0
# After a server ends, PostgreSQL takes a moment to end its session, which holds the lock until then.
START_WAIT_S = 5.0
TRY_EVERY_S = 0.05
# dead networks are noticed in seconds, not in the kernel's two hours
CONNECT = {
    "application_name": "rota",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
_LOCK_NAME = f"{schema.APPLICATION_ID}, hashtext(current_schema())"  # one server per schema
_HOLDER = text(
    "SELECT a.pid, coalesce(host(a.client_addr), 'this machine') FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
    "WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid::bigint = :name "
    "AND l.objid::bigint = hashtext(current_schema())::bigint & 4294967295 AND a.datname = current_database()"
)
_BUSY_STATES = {
    "40001",
    "40P01",
    "53300",
    "55P03",
    "57014",
}  # serialization, deadlock, too many clients, lock timeout, cancel
_FULL_STATES = {"53100"}


class PostgresDatabase:
    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url).set(drivername="postgresql+psycopg")
        except (ArgumentError, ValueError):  # neither is shown: both quote from it, and there may be a password in it
            raise StoreUnusable("the database URL makes no sense; use postgresql://user:password@host/name") from None
        self.name = parsed.render_as_string(hide_password=True)
        # "format" makes parameters positional, so that both databases take the same tuples
        self._writing = create_engine(
            parsed, paramstyle="format", poolclass=NullPool, connect_args=CONNECT, hide_parameters=True
        )
        event.listen(self._writing, "connect", _prepare_writer)
        self.readers: Engine = create_engine(
            parsed,
            paramstyle="format",
            pool_size=4,
            max_overflow=12,
            pool_timeout=5,
            pool_pre_ping=True,  # the database may have been restarted since the last look
            connect_args=CONNECT,
            hide_parameters=True,  # rows hold environments of runs, and errors are logged
            execution_options={"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
        )
        self._pid = 0  # of the backend that serves, or served, the writer

    def connect_writer(self) -> Connection:
        try:
            connection = self._writing.connect()
        except SQLAlchemyError as error:
            raise StoreUnusable(f"cannot connect to {self.name}: {_first_line(error)}") from error
        try:
            until = time.monotonic() + START_WAIT_S
            while not (locked := self._lock(connection)) and time.monotonic() < until:
                time.sleep(TRY_EVERY_S)
            if not locked:
                raise StoreBusy(f"another Rota server ({self._holder(connection)}) is using {self.name}; stop it first")
        except BaseException:
            connection.close()
            raise
        return connection

    def reconnect_writer(self) -> Connection:
        try:
            connection = self._writing.connect()
            try:
                self._lock_again(connection)
            except BaseException:
                connection.close()
                raise
        except SQLAlchemyError as error:
            raise Lost(f"{self.name} cannot be reached: {_first_line(error)}") from error
        return connection

    def _lock(self, connection: Connection) -> bool:
        got, pid = connection.execute(text(f"SELECT pg_try_advisory_lock({_LOCK_NAME}), pg_backend_pid()")).one()
        connection.commit()
        if got:
            self._pid = pid
        return bool(got)

    def _lock_again(self, connection: Connection) -> None:
        """Our own dead session may still hold the lock for a while: the server side has not noticed yet."""
        until = time.monotonic() + LOCK_WAIT_S
        mine = self._pid
        while not self._lock(connection):
            pids = [row[0] for row in connection.execute(_HOLDER, {"name": schema.APPLICATION_ID})]
            connection.commit()
            if any(pid != mine for pid in pids):
                raise Fenced(f"another Rota server (backend {pids[0]}) has taken {self.name}")
            if time.monotonic() > until:
                raise Lost(f"{self.name}: the lost connection still holds the lock")
            connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": mine})
            connection.commit()
            time.sleep(0.02)

    def _holder(self, connection: Connection) -> str:
        row = connection.execute(_HOLDER, {"name": schema.APPLICATION_ID}).first()
        return "gone again" if row is None else f"backend {row[0]}, from {row[1]}"

    def translate(self, error: SQLAlchemyError) -> StoreError:
        if isinstance(error, PoolTimeout):
            return StoreBusy(f"{self.name}: all connections are in use")
        said = f"{self.name}: {_first_line(error)}"
        if not isinstance(error, DBAPIError):
            return StoreBroken(said)
        state = getattr(error.orig, "sqlstate", None) or ""
        unreachable = isinstance(error, OperationalError) and not state  # it came from the client side
        if error.connection_invalidated or unreachable or state.startswith(("08", "57P")):
            return Lost(said)
        if state in _FULL_STATES:
            return StoreFull(said)
        if state in _BUSY_STATES:
            return StoreBusy(said)
        return StoreBroken(f"{said} ({state or 'no SQLSTATE'})")

    def close(self) -> None:
        self.readers.dispose()
        self._writing.dispose()


def _prepare_writer(raw: Any, _record: Any) -> None:
    with raw.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{LOCK_WAIT_S:g}s'")
        # acknowledged = durable, whatever the cluster's default is; stronger settings than "on" stay
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
    raw.commit()


def _first_line(error: SQLAlchemyError) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return str(cause).strip().partition("\n")[0]


def open_postgres(url: str) -> SqlStore:
    database = PostgresDatabase(url)
    try:
        writer = database.connect_writer()
        try:
            _make_or_check(database, writer)
        except SQLAlchemyError as error:
            writer.close()
            raise database.translate(error) from error
        except BaseException:
            writer.close()
            raise
    except BaseException:
        database.close()
        raise
    return SqlStore(database, writer)


def _make_or_check(database: PostgresDatabase, connection: Connection) -> None:
    """One transaction: a database that is refused is left as it was."""
    with connection.begin():
        tables = set(inspect(connection).get_table_names())
        if not tables:
            encoding = connection.execute(text("SHOW server_encoding")).scalar()
            if encoding != "UTF8":
                raise StoreUnusable(f"{database.name} has the encoding {encoding}; make one with ENCODING 'UTF8'")
            migrate(connection)
            return
        if not {"alembic_version", "head", "events"} <= tables:
            raise StoreUnusable(f"{database.name} holds the tables of another program; give Rota a database of its own")
        revision = check_revision(
            database.name, list(connection.execute(text("SELECT version_num FROM alembic_version")).scalars())
        )
        if revision != schema.REVISIONS[-1]:
            migrate(connection)
