"""Where a run keeps what it saves from one attempt to the next.

A run of another account has its directory inside one of the server's own, which that account cannot list. Whoever can
list a directory can hold its lock for as long as they like, by listing it into memory that never answers; and removing
a directory waits for its lock while it holds the lock of the one above, where everybody else's lie.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from rota.app.ports import INNER_CHECKPOINTS


class CheckpointDir(NamedTuple):
    path: str
    parent: str | None  # the server's own, for this run alone; None = it lies beside those of other runs


def checkpoint_dir(root: str, run_id: str, account: str | None) -> CheckpointDir:
    """Return the directory below `root` of a run with this account (None = the server's own). One that an earlier
    version made stays where it is."""
    path = f"{root}/{run_id}"
    if account in (None, "root") or _is_accounts(path):
        return CheckpointDir(path, None)
    return CheckpointDir(f"{path}/{INNER_CHECKPOINTS}", path)


def _is_accounts(path: str) -> bool:
    try:
        return os.lstat(path).st_uid != os.geteuid()
    except FileNotFoundError:
        return False
