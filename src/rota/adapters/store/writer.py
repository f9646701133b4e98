"""The one connection that writes: its transactions, its fence, and what to do when a commit's answer is lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from rota.adapters.store import room, rows
from rota.adapters.store import schema as s
from rota.adapters.store.database import Database, Lost
from rota.adapters.store.sql import Statements
from rota.app.ports import Fenced, StoreBroken, StoreBusy, StoreError, StoreFull

log = logging.getLogger(__name__)

MOST_ROWS = 64  # in one INSERT

Batch = Sequence[tuple[str, Sequence[tuple[Any, ...]]]]  # statements and their parameters


class Writer:
    def __init__(self, database: Database, connection: Connection, sql: Statements) -> None:
        self._database = database
        self._connection: Connection | None = connection
        self._sql = sql
        self._lock = threading.Lock()
        self._doubt = False  # the answer to a commit was lost: was it made?
        self.epoch: int | None = None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """All or nothing, and usable again after any error whose cause is gone."""
        with self._lock:
            connection = self._connection or self._reconnect()
            try:
                with connection.begin():
                    yield connection
            except SQLAlchemyError as error:
                raise self._failed(connection, error) from error

    def commit(self, batch: Batch, head: tuple[Any, ...]) -> None:
        """Move the head (see `move_head` for its parameters) and write the rows; the events come first in the batch."""
        with self._lock:
            connection = self._connection or self._reconnect()
            if self._doubt and self._settle(connection, batch, head):
                return
            try:
                with connection.begin() as transaction:
                    self.move(connection, head)
                    for sql, params in batch:
                        if params:
                            run_many(connection, sql, params)
                    self._doubt = True
                    transaction.commit()
                    self._doubt = False
            except SQLAlchemyError as error:
                failed = self._failed(connection, error)
                if not isinstance(failed, Lost):
                    self._doubt = False
                elif self._doubt and self._settle(self._reconnect(), batch, head):
                    return
                raise failed from error

    def begin_epoch(self) -> int:
        with self.transaction() as connection:
            # the write comes first: it takes the row's lock, so that what is read next is what we change
            connection.execute(s.head.update().values(epoch=s.head.c.epoch + 1))
            _, epoch, version, at, next_seq, live, _ = connection.exec_driver_sql(self._sql.read_head).one()
            connection.execute(s.head.update().values(sum=rows.head_sum(epoch, version, at, next_seq, live)))
        self.epoch = int(epoch)
        return self.epoch

    def keep_room(self, head: tuple[Any, ...], size: int) -> None:
        """Have that many bytes for a full disk inside the database file (see room). While they are there it costs next
        to nothing; to make them costs as much as writing them twice."""
        if self._is_room_kept(size):
            return
        with self.transaction() as connection:
            self.move(connection, head)
            connection.exec_driver_sql(room.DROP)  # one that a crash has left
            connection.exec_driver_sql(room.MAKE)
            connection.exec_driver_sql(room.FILL, (size,))
        with self.transaction() as connection:
            self.move(connection, head)
            connection.exec_driver_sql(room.DROP)
        self._is_room_kept(size)

    def _is_room_kept(self, size: int) -> bool:
        """Always, where the database is not a file of ours."""
        with self._lock:
            connection = self._connection or self._reconnect()
            if connection.dialect.name != "sqlite":
                return True
            try:
                return room.is_kept(connection.connection, size)
            except connection.dialect.loaded_dbapi.Error as error:
                raise self._failed(connection, DBAPIError(None, None, error)) from error

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._fold_log_in(self._connection)
                self._connection.close()
                self._connection = None

    def _fold_log_in(self, connection: Connection) -> None:
        """SQLite's: so that the file alone is the whole ledger when nobody has it open, also where the log stays."""
        if connection.dialect.name == "sqlite":
            why = "another process has the database open"
            try:
                if room.checkpoint(connection.connection, "TRUNCATE"):
                    return
            except connection.dialect.loaded_dbapi.Error as error:  # no room for it, say
                why = str(error)
            log.warning("rota.db-wal still belongs to the store, and the next start reads it: %s", why)

    def move(self, connection: Connection, head: tuple[Any, ...]) -> None:
        if run_many(connection, self._sql.move_head, [head]) == 1:
            return
        _, epoch, version, *_ = connection.exec_driver_sql(self._sql.read_head).one()
        if epoch != self.epoch:
            raise Fenced(f"a newer server owns the store: it is in epoch {epoch}, this one in {self.epoch}")
        raise StoreBroken(f"out of step: the store stands at event {version}, the batch begins after {head[-1]}")

    def _failed(self, connection: Connection, error: SQLAlchemyError) -> StoreError:
        failed = self._database.translate(error)
        if isinstance(failed, Lost) or not self._clean(connection):
            self._connection = None
            connection.invalidate()
            connection.close()
        elif isinstance(failed, StoreFull):
            self._restart_log(connection)
        return failed

    def _restart_log(self, connection: Connection) -> None:
        """Have the next commit begin the write-ahead log anew: where readers kept the last checkpoints from it, it has
        come to the end of its room, and without a commit nothing else would try again."""
        if connection.dialect.name != "sqlite":
            return
        with suppress(connection.dialect.loaded_dbapi.Error):  # still no room for it: the caller is told as much
            room.checkpoint(connection.connection, "RESTART")

    def _clean(self, connection: Connection) -> bool:
        """After a commit that failed (a full disk) the transaction is still open, and SQLAlchemy does not end it."""
        if connection.invalidated:
            return False
        try:
            connection.rollback()
            connection.connection.rollback()
        except (SQLAlchemyError, connection.dialect.loaded_dbapi.Error):
            return False
        return True

    def _reconnect(self) -> Connection:
        connection = self._database.reconnect_writer()
        try:
            _, epoch, *_ = connection.exec_driver_sql(self._sql.read_head).one()
            connection.rollback()
        except SQLAlchemyError as error:
            connection.close()
            raise self._database.translate(error) from error
        if self.epoch is not None and epoch != self.epoch:
            connection.close()
            raise Fenced(f"a newer server owns the store: it is in epoch {epoch}, this one in {self.epoch}")
        self._connection = connection
        return connection

    def _settle(self, connection: Connection, batch: Batch, head: tuple[Any, ...]) -> bool:
        """The answer to a commit was lost with the connection. True = it was made, and it was this very batch.

        The old session is gone for good by now (its lock is ours again), so a commit of it cannot come later."""
        before = head[-1]
        try:
            _, _, there, *_ = connection.exec_driver_sql(self._sql.read_head).one()
            later = select(s.events.c.seq, s.events.c.sum).where(s.events.c.seq > before).order_by(s.events.c.seq)
            stored = [tuple(row) for row in connection.execute(later)] if there != before else []
            connection.rollback()
        except SQLAlchemyError as error:
            raise self._failed(connection, error) from error
        self._doubt = False
        if there == before:
            return False
        if stored == [(row[0], row[-1]) for row in batch[0][1]]:
            return True
        raise StoreBusy(f"event {there} was committed although its answer was lost; load the state again")


def run_many(connection: Connection, sql: str, params: Sequence[tuple[Any, ...]]) -> int:
    """How many rows it changed."""
    if connection.dialect.name == "sqlite":
        return _run_sqlite(connection, sql, params)
    # one row goes the short way: drivers make executemany dearer than execute
    return connection.exec_driver_sql(sql, params[0] if len(params) == 1 else list(params)).rowcount


def _run_sqlite(connection: Connection, sql: str, params: Sequence[tuple[Any, ...]]) -> int:
    """Straight to the driver: a commit is a handful of statements, and SQLAlchemy's part in each costs more than
    SQLite's. The driver gives up Python's lock at every step and must get it back from a busy server, so rows are
    inserted by the dozen in one statement; by powers of two, which leaves few statements to prepare."""
    cursor = connection.connection.cursor()
    try:
        if not sql.startswith("INSERT") or not sql.endswith("?)"):
            cursor.executemany(sql, params)
            return int(cursor.rowcount)
        values = f", {sql[sql.rindex('(') :]}"
        done = 0
        while done < len(params):
            count = min(MOST_ROWS, 1 << (len(params) - done).bit_length() - 1)
            flat = tuple(chain.from_iterable(params[done : done + count]))
            cursor.execute(sql + values * (count - 1), flat)
            done += count
        return done
    except connection.dialect.loaded_dbapi.Error as error:
        raise DBAPIError(None, None, error) from error
    finally:
        cursor.close()
