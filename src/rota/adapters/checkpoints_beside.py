"""Which runs have their checkpoint directories side by side, as versions before those of each account made them.

To list `checkpoints/` waits for its lock, and accounts that can search it can hold that. So it is listed once, at the
first start after such a version, and what was found is kept in a file.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from rota.adapters.backends import records
from rota.adapters.checkpoints import RUN_ID
from rota.adapters.datadir import DataDir

FILE = "checkpoints-beside"
END = "end"  # the last line: without it the file is not whole
log = logging.getLogger(__name__)


def side_by_side(data_dir: DataDir, root: Path) -> frozenset[str]:
    """Return the runs whose directories lie in `root` itself, whatever their accounts are. `root`: the directory of all
    checkpoints, in `data_dir`."""
    kept = _read(data_dir.path / FILE) if data_dir.is_apart else None
    if kept is not None:
        return kept
    try:
        found = frozenset(filter(RUN_ID.fullmatch, os.listdir(root)))
    except FileNotFoundError:
        found = frozenset()
    try:
        where = str(data_dir.path)
        records.publish(where, where, FILE, "\n".join([*sorted(found), END, ""]).encode(), durable=True)
        data_dir.note_apart()
    except OSError as error:
        if error.errno not in records.FULL:
            raise
        log.error("%s cannot be written, so the next start lists %s again: %s", FILE, root, error)
    return found


def _read(path: Path) -> frozenset[str] | None:
    """None: it is not there, or not whole."""
    try:
        *names, end = path.read_text(encoding="ascii").split()
    except (FileNotFoundError, ValueError):  # ValueError: it is empty, or no ASCII
        return None
    return frozenset(names) if end == END and all(map(RUN_ID.fullmatch, names)) else None
