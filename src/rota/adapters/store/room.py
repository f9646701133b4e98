"""Room inside a SQLite database for the time when the disk is full.

A file that is removed then is room for any process that writes next, such as the job that filled the disk. What is
inside the database nobody else can take: a write-ahead log that was grown once is overwritten in place, since a
checkpoint starts it anew and does not shorten it below `journal_size_limit`; and new rows go into the free pages of
the file before it grows, so that a checkpoint finds its blocks there. Both come from a table that is written in one
transaction and dropped in the next: written, because pages that are freed in the transaction that took them would be
holes in the file.

A file system that never writes in place (btrfs, ZFS) needs free blocks all the same.
"""

from __future__ import annotations

import os
from typing import Any

MAKE = "CREATE TABLE spare_room (body BLOB)"
FILL = "INSERT INTO spare_room VALUES (zeroblob(?))"
DROP = "DROP TABLE IF EXISTS spare_room"
MOST_LOG_PAGES = 1000  # SQLite's own bound on the log before it copies it into the file
LEAST_LOG_PAGES = 32


def is_kept(raw: Any, size: int) -> bool:
    """Whether the log has `size` bytes and the file half as many in free pages, which are used up as the ledger grows.
    `raw`: the driver's connection, the one that writes."""
    page = _number(raw, "page_size")
    # A checkpoint is due well before the end of the log: one large commit more has to fit.
    pages = max(LEAST_LOG_PAGES, min(MOST_LOG_PAGES, size // page // 2))
    raw.execute(f"PRAGMA wal_autocheckpoint={pages}").fetchall()
    path = raw.execute("PRAGMA database_list").fetchone()[2]
    if os.stat(path).st_size < _number(raw, "page_count") * page:
        checkpoint(raw, "PASSIVE")  # pages that are in the log only have no blocks in the file yet
    return _number(raw, "freelist_count") * page >= size // 2 and _size(f"{path}-wal") >= size


def checkpoint(raw: Any, how: str) -> bool:
    """Copy the log into the file: PASSIVE as far as readers let it; RESTART waits for them, so that the next commit
    begins the log anew. Return whether nobody was in the way."""
    return not raw.execute(f"PRAGMA wal_checkpoint({how})").fetchone()[0]


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _number(raw: Any, pragma: str) -> int:
    return int(raw.execute(f"PRAGMA {pragma}").fetchone()[0])
