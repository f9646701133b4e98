"""Old attempts go: what was forgotten and ended long ago."""

from __future__ import annotations

import os
import shutil

from rota.adapters.backends import records
from rota.core.ids import is_attempt_id


def purge(root: str, before: float) -> int:
    """Remove forgotten attempts whose exit record is older than `before` (epoch s). Returns how many went."""
    count = 0
    with os.scandir(f"{root}/attempts") as entries:
        for entry in entries:
            if is_attempt_id(entry.name) and _is_over(root, entry, before):
                grave = records.attempt_dir(root, records.private_name())
                os.rename(entry.path, grave)  # first out of sight, whole: half an attempt must never be seen
                shutil.rmtree(grave)
                count += 1
    return count


def _is_over(root: str, entry: os.DirEntry[str], before: float) -> bool:
    if os.path.lexists(f"{root}/live/{entry.name}"):
        return False
    try:
        return os.stat(f"{entry.path}/exit", follow_symlinks=False).st_mtime < before
    except FileNotFoundError:
        return False
