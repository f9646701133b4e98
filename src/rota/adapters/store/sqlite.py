"""SQLite: one file, WAL, synchronous=FULL.

Exactly one connection writes and checkpoints; all others are opened read-only. That is what keeps SQLite before 3.51.3
safe, which can lose commits when two connections write and checkpoint at once.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import NullPool, QueuePool

from rota.app.ports import StoreBroken, StoreBusy, StoreError, StoreFull

BUSY_S = 2.0
FULL_BELOW_BYTES = 1 << 20

_BUSY, _LOCKED, _IOERR, _CORRUPT, _FULL, _CANTOPEN, _NOTADB = 5, 6, 10, 11, 13, 14, 26
_IOERR_FSYNC, _IOERR_DIR_FSYNC = _IOERR | 4 << 8, _IOERR | 5 << 8


def driver() -> ModuleType:
    """pysqlite3 brings a SQLite of its own, newer than most systems'."""
    try:
        import pysqlite3.dbapi2 as module
    except ImportError:
        import sqlite3 as module
    found: ModuleType = module
    return found


def uri(path: Path, options: str) -> str:
    return f"file:{quote(str(path))}?{options}"


def engine(path: Path, options: str, begin: str, *pragmas: str, pooled: bool = False) -> Engine:
    module = driver()

    def connect() -> Any:
        # isolation_level=None: the driver starts no transactions of its own, so that BEGIN is exactly what we say
        raw = module.connect(
            uri(path, options),
            uri=True,
            timeout=BUSY_S,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
        )
        try:
            for pragma in pragmas:
                raw.execute(f"PRAGMA {pragma}").fetchall()
        except module.Error:
            raw.close()
            raise
        return raw

    if pooled:
        made = create_engine(
            "sqlite://",
            module=module,
            creator=connect,
            poolclass=QueuePool,
            pool_size=4,
            max_overflow=12,
            pool_timeout=5,
            hide_parameters=True,  # rows hold environments of runs, and errors are logged
        )
    else:
        made = create_engine("sqlite://", module=module, creator=connect, poolclass=NullPool, hide_parameters=True)

    def begins(connection: Connection) -> None:
        try:  # straight to the driver: through SQLAlchemy this word costs as much as a commit's inserts
            connection.connection.cursor().execute(begin)
        except module.Error as error:
            raise DBAPIError(begin, None, error) from error

    event.listen(made, "begin", begins)
    return made


class SqliteDatabase:
    """A file that exists and was looked at before (see inspect)."""

    def __init__(self, path: Path, journal: str = "WAL") -> None:
        self.path = path
        self._journal = journal
        self._last: Connection | None = None  # is closed last
        self.readers = engine(path, "mode=ro", "BEGIN", "temp_store=MEMORY", pooled=True)
        self._writing = engine(
            path,
            "mode=rw",
            "BEGIN IMMEDIATE",
            f"journal_mode={journal}",
            "synchronous=FULL",
            "foreign_keys=OFF",
            "temp_store=MEMORY",
            "cache_size=-32000",
            f"journal_size_limit={64 << 20}",
        )

    def connect_writer(self) -> Connection:
        try:
            writer = self._writing.connect()
            if self._last is None and self._keeps_log():
                try:
                    self._last = self._hold_open()
                except BaseException:
                    writer.close()
                    raise
            return writer
        except SQLAlchemyError as error:
            raise self.translate(error) from error

    def _keeps_log(self) -> bool:
        """Whether the write-ahead log and its index, which are empty then, stay when the database is closed. To remove
        them waits for the lock of their directory, and accounts that can search that can hold it for as long as they
        like: a server could not end."""
        return self._journal == "WAL" and bool(os.stat(self.path.parent).st_mode & 0o011)

    def _hold_open(self) -> Connection:
        """Return a connection that may not write. SQLite removes the log with the last connection, if it may write."""
        last = self.readers.connect()
        try:
            last.detach()  # it is not one of the pool's
            last.exec_driver_sql("SELECT 1 FROM sqlite_master").close()
            last.rollback()
        except BaseException:
            last.close()
            raise
        return last

    def reconnect_writer(self) -> Connection:
        return self.connect_writer()

    def translate(self, error: SQLAlchemyError) -> StoreError:
        if isinstance(error, PoolTimeout):
            return StoreBusy(f"{self.path}: too many readers at once")
        cause = error.orig if isinstance(error, DBAPIError) else None
        code = getattr(cause, "sqlite_errorcode", None)
        if cause is None or code is None:
            return StoreBroken(f"{self.path}: {error}")
        return self.meaning(code, str(cause))

    def meaning(self, code: int, text: str) -> StoreError:
        text = f"{self.path}: {text} (SQLite error {code})"
        if code & 0xFF in (_BUSY, _LOCKED):
            return StoreBusy(text)
        if code & 0xFF == _CANTOPEN and self.path.exists():
            return StoreBusy(text)  # no descriptor is to be had just now
        if code & 0xFF == _FULL:
            return StoreFull(text)
        if code & 0xFF == _IOERR and code not in (_IOERR_FSYNC, _IOERR_DIR_FSYNC) and self._no_space():
            return StoreFull(text)  # growing the shared-memory file on a full disk comes as a plain I/O error
        return StoreBroken(text)

    def _no_space(self) -> bool:
        try:
            there = os.statvfs(self.path.parent)
        except OSError:
            return False
        return there.f_bavail * there.f_frsize < FULL_BELOW_BYTES

    def close(self) -> None:
        self.readers.dispose()
        self._writing.dispose()
        if self._last is not None:
            self._last.close()
            self._last = None
