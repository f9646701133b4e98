"""Opening a store: make it, refuse it, or bring it up to date."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from rota.adapters.store import schema, sqlite
from rota.adapters.store.inspect import check_revision, inspect_file
from rota.adapters.store.migrate import migrate
from rota.adapters.store.store import SqlStore
from rota.app.ports import StoreBusy, StoreUnusable

POSTGRES = ("postgresql+psycopg://", "postgresql://", "postgres://")
SQLITE = "sqlite:///"


def is_url(text: str) -> bool:
    """Whether it names a database rather than a file by some word: a slip must not make a new one."""
    return text.startswith((*POSTGRES, f"{SQLITE}/"))


def open_store(where: str | os.PathLike[str]) -> SqlStore:
    """`where` is the path of a SQLite file (or sqlite:///path), or the URL of a PostgreSQL database."""
    name = os.fspath(where)
    if name.startswith(POSTGRES):
        try:
            from rota.adapters.store.postgres import open_postgres
        except ImportError as error:
            raise StoreUnusable('PostgreSQL needs psycopg: pip install "rota[server,postgres]"') from error
        return open_postgres(name)
    if "://" in name and not name.startswith(SQLITE):
        raise StoreUnusable(f"{name.partition('://')[0]} is not a database Rota knows: give a path or postgresql://...")
    return open_sqlite(Path(name.removeprefix(SQLITE)).absolute())


def open_reader(path: Path) -> SqlStore:
    """To look beside whoever writes: no writing connection, nothing made, changed or brought up to date."""
    inspect_file(path)
    return SqlStore(sqlite.SqliteDatabase(path), None)


def open_sqlite(path: Path) -> SqlStore:
    if path.exists() and path.stat().st_size:
        inspect_file(path)
    else:
        _create(path)
    os.chmod(path, 0o600)
    database = sqlite.SqliteDatabase(path)
    try:
        writer = database.connect_writer()
        try:
            _upgrade(database, writer)
        except BaseException:
            writer.close()
            raise
    except BaseException:
        database.close()
        raise
    return SqlStore(database, writer)


def _create(path: Path) -> None:
    """Made under another name and linked to its own when done: a file under the real name is always complete."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    database = sqlite.SqliteDatabase(new, journal="MEMORY")
    try:
        new.unlink(missing_ok=True)
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with database.connect_writer() as connection, connection.begin():
            connection.execute(text(f"PRAGMA application_id = {schema.APPLICATION_ID}"))
            migrate(connection)
        if path.exists() and not path.stat().st_size:
            path.unlink()
        os.link(new, path)  # unlike a rename, this never replaces a database that somebody made meanwhile
        _sync_directory(path.parent)
    except FileExistsError as error:
        raise StoreBusy(f"{path} is being made by another process") from error
    except OSError as error:
        raise StoreUnusable(f"cannot make {path}: {error.strerror}") from error
    except SQLAlchemyError as error:
        raise database.translate(error) from error
    finally:
        database.close()
        new.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _upgrade(database: sqlite.SqliteDatabase, connection: Connection) -> None:
    try:
        with connection.begin():
            found = list(connection.execute(text("SELECT version_num FROM alembic_version")).scalars())
            if check_revision(str(database.path), found) != schema.REVISIONS[-1]:
                migrate(connection)
    except SQLAlchemyError as error:
        raise database.translate(error) from error
