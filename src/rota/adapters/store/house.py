"""Whose database is it, and which database does a data directory have?

A shared one belongs to the data directory that holds its attempts and logs. A server that opened the database from
another directory would find none of the attempts there: it would call running work lost and start it a second time. So
both carry the same random name, and a stranger is refused while anything is active.

The other way round, a directory that has had a store must not get a new one in silence: without its runs, GPUs would be
given out twice, and without its tokens the server would be open to everybody. Looked at once, when a server opens.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from pathlib import Path

from sqlalchemy import Connection, func, select

from rota.adapters.store import rows
from rota.adapters.store import schema as s
from rota.adapters.store.store import SqlStore
from rota.app.ports import StoreUnusable
from rota.core.run import ACTIVE

FILE = "house-id"  # a directory with this file has its store behind a URL
MADE = "store-made"  # and one with this file in its own rota.db
SQLITE_FILE = "rota.db"
OLD_TEXT = f"{SQLITE_FILE} was made here"  # what `store-made` said before it held a name
KEY, MADE_KEY = "house", "store"  # of the settings rows: whose a shared database is, and a file's own name


def must_have_its_store(data_dir: Path) -> None:
    """Look before the SQLite file of a directory is opened, since opening makes it. Raises StoreUnusable."""
    if (data_dir / FILE).exists():
        raise StoreUnusable(
            f"the runs and tokens of {data_dir} are in another database: set ROTA_DATABASE_URL (or --database-url) as "
            f"before; to leave them behind and use SQLite, remove {data_dir / FILE}"
        )
    path = data_dir / SQLITE_FILE
    if path.exists() and path.stat().st_size:
        return
    if traces := _traces(data_dir):
        raise StoreUnusable(
            f"{path} is gone or empty, and {data_dir} has been used before ({', '.join(traces)}); a new one would know "
            "no run and no token, and be open to everybody. Restore it from a backup, or move the directory away to "
            "begin anew"
        )


def bind_file(store: SqlStore, data_dir: Path) -> None:
    """Give a directory and its SQLite file the same name, now that the file has been opened. Raises StoreUnusable where
    the file has that of another directory: put there by mistake it would know no token, and be open to everybody."""
    known = _name_in(data_dir / MADE, nameless=OLD_TEXT)
    with store.transaction() as connection:
        row = connection.execute(select(s.settings).where(s.settings.c.key == MADE_KEY)).one_or_none()
        bound = "" if row is None else str(rows.loads(row.body)["id"])
        if known and bound != known and (bound or _is_empty(connection)):
            raise StoreUnusable(
                f"{data_dir / SQLITE_FILE} is not the one that {data_dir} had: it may be another directory's. Put the "
                f"right one there, or remove {data_dir / MADE} to go on with this one"
            )
        mine = bound or known or secrets.token_hex(16)
        if not bound:
            body = rows.dumps({"id": mine})
            connection.exec_driver_sql(store.upsert_setting, (MADE_KEY, body, rows.checksum(MADE_KEY, body)))
    if not known:  # last, as below
        _write(data_dir, MADE, f"{mine}\n")


def bind_house(store: SqlStore, data_dir: Path) -> None:
    """After opening both, before anything is done with them. Raises StoreUnusable."""
    known = _name_in(data_dir / FILE)
    mine = known or secrets.token_hex(16)
    here = f"{socket.gethostname()}:{data_dir}"
    with store.transaction() as connection:
        row = connection.execute(select(s.settings).where(s.settings.c.key == KEY)).one_or_none()
        bound = {} if row is None else rows.loads(row.body)
        if bound.get("id") == mine and bound.get("place") == here:
            return
        if not bound and _is_empty(connection):
            _must_not_have_another(data_dir, known, opened=_file_of(connection))
        active = _active(connection)
        if bound and bound.get("id") != mine and active:
            raise StoreUnusable(
                f"this database belongs to the data directory {bound.get('place')}, not to {here}, and {active} runs "
                "are active there; use that directory, or end those runs with its server first. If that directory is "
                f"lost and nothing of it runs any more, write {bound.get('id')} into {data_dir / FILE}: those runs are "
                "then taken for lost and tried again"
            )
        body = rows.dumps({"id": mine, "place": here})
        connection.exec_driver_sql(store.upsert_setting, (KEY, body, rows.checksum(KEY, body)))
    if not known:  # last: a directory with a name must never meet a database that was not told of it
        _write(data_dir, FILE, f"{mine}\n")


def _must_not_have_another(data_dir: Path, known: str, *, opened: str) -> None:
    """An empty database is for a directory that has none yet. `opened`: its file; the URL may name that which the
    directory would have without one."""
    if known:
        raise StoreUnusable(
            f"this database is empty, and {data_dir} has had one before; a new one would know no run and no token, and "
            "be open to everybody. Name the database it had, restore that, or remove "
            f"{data_dir / FILE} to begin anew"
        )
    file = data_dir / SQLITE_FILE
    if file.exists() and file.stat().st_size and not (opened and file.samefile(opened)):
        raise StoreUnusable(
            f"this database is empty, and the runs and tokens of {data_dir} are in {file}; a new one would know none "
            "of them, and be open to everybody. Leave --database-url (ROTA_DATABASE_URL) out, or move that file away"
        )
    if traces := _traces(data_dir):
        raise StoreUnusable(
            f"this database is empty, and {data_dir} has been used before ({', '.join(traces)}); name the database it "
            "had, or move the directory away to begin anew"
        )


def _file_of(connection: Connection) -> str:
    """The file of an SQLite database; "" = it is another kind, or in memory."""
    if connection.dialect.name != "sqlite":
        return ""
    return next(str(row[2]) for row in connection.exec_driver_sql("PRAGMA database_list") if row[1] == "main")


def _is_empty(connection: Connection) -> bool:
    return connection.execute(select(s.events.c.seq).limit(1)).first() is None


def _traces(data_dir: Path) -> list[str]:
    """What a directory that has had a store shows, apart from the store: files, and directories that are not empty."""
    found = (data_dir / name for name in (MADE, "admin.token", "attempts"))
    return [path.name for path in found if (any(path.iterdir()) if path.is_dir() else path.exists())]


def _active(connection: Connection) -> int:
    states = sorted(map(str, ACTIVE))
    active = select(func.count()).select_from(s.runs).where(s.runs.c.live == 1, s.runs.c.state.in_(states))
    return int(connection.execute(active).scalar_one())


def _name_in(path: Path, nameless: str = "") -> str:
    """The name of a directory that a file of it holds; "" = it has none yet, or the file says only `nameless`."""
    try:
        known = path.read_text("ascii").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise StoreUnusable(f"cannot read {path}: {error}") from error
    if nameless and known == nameless:
        return ""
    if not re.fullmatch(r"[0-9a-f]{32}", known):
        # the file that belongs to a directory's own store may go at any time: a new one is written beside it
        when = "" if path.name == MADE else " while no run is active"
        raise StoreUnusable(f"{path} does not hold the name of a house; restore it, or remove it{when}")
    return known


def _write(data_dir: Path, name: str, text: str) -> None:
    """Under the directory's lock; complete or not there."""
    new = data_dir / f"{name}.new"
    fd = os.open(new, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(data_dir / name)
