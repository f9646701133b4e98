"""Opening a store: make it, refuse it, or bring it up to date."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from rota.adapters.store import schema, sqlite
from rota.adapters.store.inspect import check_revision, inspect_file
from rota.adapters.store.store import SqlStore
from rota.app.ports import StoreError, StoreUnusable

POSTGRES = ("postgresql+psycopg://", "postgresql://", "postgres://")
SQLITE = "sqlite:///"


def open_store(where: str | os.PathLike[str]) -> SqlStore:
    """`where` is the path of a SQLite file (or sqlite:///path), or the URL of a PostgreSQL database."""
    name = os.fspath(where)
    if name.startswith(POSTGRES):
        from rota.adapters.store.postgres import open_postgres

        return open_postgres(name)
    return open_sqlite(Path(name.removeprefix(SQLITE)).absolute())


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
            upgrade(str(path), writer, database)
        except BaseException:
            writer.close()
            raise
    except BaseException:
        database.close()
        raise
    return SqlStore(database, writer)


def _create(path: Path) -> None:
    """Made under another name and renamed: a file under the real name is always complete."""
    new = path.with_name(f"{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise StoreUnusable(f"cannot make {path}: {error.strerror}") from error
    engine = sqlite.engine(new, "mode=rw", "BEGIN IMMEDIATE", "journal_mode=MEMORY", "synchronous=FULL")
    try:
        with engine.begin() as connection:
            connection.execute(text(f"PRAGMA application_id = {schema.APPLICATION_ID}"))
            migrate(connection)
    except SQLAlchemyError as error:
        raise sqlite.SqliteDatabase(path).translate(error) from error
    finally:
        engine.dispose()
    os.replace(new, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def upgrade(what: str, connection: Connection, database: sqlite.SqliteDatabase) -> None:
    try:
        with connection.begin():
            found = list(connection.execute(text("SELECT version_num FROM alembic_version")).scalars())
            if check_revision(what, found) != schema.REVISIONS[-1]:
                migrate(connection)
    except SQLAlchemyError as error:
        raise database.translate(error) from error


def migrate(connection: Connection) -> None:
    """To the newest revision, inside the caller's transaction. Alembic is imported only when there is work for it."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


__all__ = ["StoreError", "open_store"]
