"""Is this file a database of ours that we can read? Answered before anything is written beside or into it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rota.adapters.store import schema, sqlite
from rota.adapters.store.wal import lost_commits
from rota.app.ports import StoreBusy, StoreUnusable

MAGIC = b"SQLite format 3\x00"
CHECKED_BYTES = 64 << 20  # quick_check reads the whole file: above this the rows' own sums must do


def inspect_file(path: Path) -> None:
    """Raises StoreUnusable. The file, and what lies beside it, stays as it is."""
    _header(path)
    wal = path.with_name(f"{path.name}-wal")
    # Without a WAL nobody else's changes are pending: immutable=1 reads the file alone, no lock, no -shm. With one, a
    # server was killed and the file alone may be half of a checkpoint; SQLite must look through the WAL.
    alone = not (wal.exists() and wal.stat().st_size)
    module = sqlite.driver()
    try:
        raw = module.connect(sqlite.uri(path, "immutable=1" if alone else "mode=ro"), uri=True, timeout=sqlite.BUSY_S)
        try:
            _contents(path, raw)
            damage = None if alone else lost_commits(path)
        finally:
            raw.close()
    except (module.Error, UnicodeDecodeError) as error:  # a damaged schema is quoted in the driver's message
        code = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF in (5, 6):
            raise StoreBusy(f"{path}: {error}") from error
        raise StoreUnusable(f"{path} is damaged: {error}. Restore it from a backup; it was left as it is") from error
    if damage:
        raise StoreUnusable(f"{path} is damaged: {damage}. Restore it from a backup; it was left as it is")


def _header(path: Path) -> None:
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        raise StoreUnusable(f"cannot open {path}: {error.strerror}") from error
    if not header.startswith(MAGIC) or len(header) < 100:
        raise StoreUnusable(f"{path} is not a SQLite database; restore it from a backup, or choose another --data-dir")
    if int.from_bytes(header[68:72], "big") != schema.APPLICATION_ID:
        raise StoreUnusable(f"{path} is a SQLite database of another program; choose another --data-dir")


def _contents(path: Path, raw: Any) -> None:
    check_revision(str(path), [row[0] for row in raw.execute("SELECT version_num FROM alembic_version")])
    if os.stat(path).st_size <= CHECKED_BYTES:
        found = raw.execute("PRAGMA quick_check(5)").fetchall()
        if found != [("ok",)]:
            text = "; ".join(str(row[0]) for row in found)
            raise StoreUnusable(f"{path} is damaged: {text}. Restore it from a backup; it was left as it is")


def check_revision(what: str, revisions: list[str]) -> str:
    """The revision, if this Rota knows it."""
    if len(revisions) != 1:
        raise StoreUnusable(f"{what} is damaged: table alembic_version holds {revisions}; it was left as it is")
    if revisions[0] not in schema.REVISIONS:
        raise StoreUnusable(
            f"{what} was made by a newer Rota (revision {revisions[0]}, this one knows up to {schema.REVISIONS[-1]}); "
            "upgrade Rota. It was left as it is"
        )
    return revisions[0]
