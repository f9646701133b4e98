"""The checkpoint directories of runs: kept for as long as the run is, and then removed.

What lies in one was written by whoever ran the command, perhaps as another account, and perhaps with an eye on a server
that is root: a link in it is removed as a link, never followed, also when it is put there while we are at it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

RUN_ID = re.compile(r"[0-9a-f]{12}")
MOST = 200  # removed in one round: a round must end
RM_S = 600.0  # for one tree
WALKED = 200_000  # files looked at in one round of measuring
DEEPEST = 50  # directories in one another; what lies deeper is not measured
BLOCK = 512  # bytes, the unit of st_blocks
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
log = logging.getLogger(__name__)


class CheckpointFiles:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._next = ""  # where the next round of measuring begins

    def sizes(self) -> Iterator[tuple[str, int | None]]:
        """Return each run that has a directory, with the bytes of the blocks in it. A bounded number of files is looked
        at in one round; the runs left over are None, and the first of the next round."""
        try:
            names = sorted(entry.name for entry in os.scandir(self._root) if RUN_ID.fullmatch(entry.name))
        except FileNotFoundError:
            return
        left = WALKED
        ahead = [name for name in names if name >= self._next]
        for name in (*ahead, *names[: len(names) - len(ahead)]):
            if left <= 0:
                yield name, None
                continue
            size, walked = _blocks_below(self._root / name)
            left -= walked
            if left <= 0:
                self._next = name + "-"
            yield name, size

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


def _blocks_below(path: Path) -> tuple[int, int]:
    """Return the bytes used below a directory, and how many entries were looked at."""
    try:
        fd = os.open(path, FOLDER)
    except OSError:  # it has gone, or is no directory any more
        return 0, 1
    try:
        return _walk(fd, os.fstat(fd).st_dev, DEEPEST, WALKED)
    finally:
        os.close(fd)


def _walk(fd: int, device: int, deeper: int, left: int) -> tuple[int, int]:
    """By descriptors, so that no link can be put in the way meanwhile; each level costs one, so depth is bounded too.
    What lies on another disk does not count."""
    size, walked = 0, 1
    with os.scandir(fd) as entries:
        for entry in entries:
            walked += 1
            try:
                found = entry.stat(follow_symlinks=False)
                if found.st_dev != device:
                    continue
                size += found.st_blocks * BLOCK
                if stat.S_ISDIR(found.st_mode) and deeper and walked < left:
                    below = os.open(entry.name, FOLDER, dir_fd=fd)
                    try:
                        more, looked_at = _walk(below, device, deeper - 1, left - walked)
                    finally:
                        os.close(below)
                    size, walked = size + more, walked + looked_at
            except OSError:  # a job removes what it has replaced, and may close a directory to everybody
                continue
            if walked >= left:
                break
    return size, walked


def _is_old(entry: os.DirEntry[str], before: float) -> bool:
    """A directory that looks young may belong to a run the store has forgotten because an old copy was put back."""
    if not RUN_ID.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
        return False
    return entry.stat(follow_symlinks=False).st_mtime < before


def _remove(path: str) -> bool:
    assert shutil.rmtree.avoids_symlink_attacks
    try:
        _remove_tree(path)
    except OSError as error:  # of one; the others go on, and this one is tried again
        log.warning("checkpoints of a run that is gone could not be removed: %s", error)
        return False
    return True


def _remove_tree(path: str) -> None:
    """A job may nest directories more deeply than Python can recurse; rm does not recurse."""
    try:
        shutil.rmtree(path)
    except RecursionError:
        done = subprocess.run(["rm", "-rf", "--", path], capture_output=True, text=True, check=False, timeout=RM_S)
        if done.returncode:
            raise OSError(done.stderr.strip()[:200]) from None
