"""The checkpoint directories of runs: kept for as long as the run is, and then removed.

What lies in one was written by whoever ran the command, perhaps as another account, and perhaps with an eye on a server
that is root: a link in it is removed as a link, never followed, also when it is put there while we are at it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

RUN_ID = re.compile(r"[0-9a-f]{12}")
MOST = 200  # removed in one round: a round must end
log = logging.getLogger(__name__)


class CheckpointFiles:
    def __init__(self, root: Path) -> None:
        self._root = root

    def purge(self, before: float, gone: Callable[[str], bool]) -> int:
        """Remove the directories that were last added to before this time (epoch s), of runs that are gone. Returns how
        many went; the rest of very many goes in the next rounds."""
        count = 0
        try:
            entries = os.scandir(self._root)
        except FileNotFoundError:
            return 0
        with entries:
            for entry in entries:
                if count >= MOST:
                    break
                if _is_old(entry, before) and gone(entry.name):
                    count += _remove(entry.path)
        return count


def _is_old(entry: os.DirEntry[str], before: float) -> bool:
    """A directory that looks young may belong to a run the store has forgotten because an old copy was put back."""
    if not RUN_ID.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
        return False
    return entry.stat(follow_symlinks=False).st_mtime < before


def _remove(path: str) -> bool:
    assert shutil.rmtree.avoids_symlink_attacks
    try:
        shutil.rmtree(path)
    except OSError as error:  # of one; the others go on, and this one is tried again
        log.warning("checkpoints of a run that is gone could not be removed: %s", error)
        return False
    return True
