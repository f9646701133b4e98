"""The checkpoint directories of runs: kept for as long as the run is, and then removed.

What lies in one was written by whoever ran the command, perhaps as another account, and perhaps with an eye on a server
that is root: a link in it is removed as a link, never followed, also when it is put there while we are at it.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from rota.adapters.tree_size import TreeSize
from rota.app.ports import ACCOUNT_CHECKPOINTS

RUN_ID = re.compile(r"[0-9a-f]{12}")
MOST = 200  # removed in one round: a round must end
RM_S = 600.0  # for one tree
KILLED_S = 5.0  # for the end of an `rm` that was killed; one that waits in the kernel may never end
MOST_STUCK = 10  # such ones at a time: each costs a process, and a round its time
WALKED = 200_000  # files looked at in one round of measuring
log = logging.getLogger(__name__)


class CheckpointFiles:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._next = ""  # where the next round of measuring begins
        self._unfinished: dict[str, TreeSize] = {}  # run -> what goes on in a later round
        self._least: dict[str, int] = {}  # run -> what it counts as until it is measured to its end again
        self._stuck: dict[str, subprocess.Popen[str]] = {}  # path -> an `rm` that did not end when it was killed

    def sizes(self) -> Iterator[tuple[str, int | None]]:
        """Return each run that has a directory, with the bytes of the blocks in it. A bounded number of files is looked
        at in one round; the runs left over are None, and the first of the next round. A run that is too large for a
        round counts as what was seen of it so far, or as before if that is larger."""
        paths = {entry.name: entry.path for entry in self._entries()}
        names = sorted(paths)
        for known in (self._unfinished, self._least):
            for name in known.keys() - set(names):
                del known[name]
        left = WALKED
        ahead = [name for name in names if name >= self._next]
        for name in (*ahead, *names[: len(names) - len(ahead)]):
            if left <= 0:
                yield name, None
                continue
            size, walked = self._measure(name, paths[name], left)
            left -= walked
            if left <= 0:
                self._next = name + "-"
            yield name, size

    def side_by_side(self) -> frozenset[str]:
        """Return the runs whose directories lie beside each other, whatever their accounts are."""
        return frozenset(entry.name for entry in _list(self.root) if RUN_ID.fullmatch(entry.name))

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        """Return the directories of runs: those side by side, and those that each account has for itself."""
        for entry in _list(self.root):
            if RUN_ID.fullmatch(entry.name):
                yield entry
            elif entry.name.startswith(ACCOUNT_CHECKPOINTS) and entry.is_dir(follow_symlinks=False):
                yield from (inner for inner in _list(entry.path) if RUN_ID.fullmatch(inner.name))

    def _measure(self, name: str, path: str, most: int) -> tuple[int, int]:
        """Return what a run counts as, and how many entries were looked at."""
        tree = self._unfinished.pop(name, None) or TreeSize(Path(path))
        try:
            walked = tree.go_on(most)
        except OSError:  # it was moved since, or nothing can be opened: it is measured anew in the next round
            walked = 0
        else:
            if not tree.is_whole:
                self._unfinished[name] = tree
        size = tree.size if tree.is_whole else max(tree.size, self._least.get(name, 0))
        self._least[name] = size
        return size, walked + 1

    def purge(self, before: float, gone: Callable[[str], bool]) -> int:
        """Remove the directories that were last added to before this time (epoch s), of runs that are gone. Returns how
        many went; the rest of very many goes in the next rounds."""
        count = 0
        for path, process in list(self._stuck.items()):
            if process.poll() is not None:
                self._stuck.pop(path, None)
        for entry in self._entries():
            if count >= MOST or len(self._stuck) >= MOST_STUCK:
                break
            if entry.path not in self._stuck and _is_old(entry, before) and gone(entry.name):
                count += self._remove(entry.path)
        return count

    def _remove(self, path: str) -> bool:
        """By `rm`, which neither recurses nor keeps all names of a directory in memory, as Python's own way does: a job
        may have nested directories as deeply, and made as many names, as it likes. No link is followed."""
        try:
            process = subprocess.Popen(
                ["rm", "-rf", "--", path],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            try:
                _, said = process.communicate(timeout=RM_S)
            except subprocess.TimeoutExpired:
                self._kill(process, path)
                raise
            if process.returncode:
                raise OSError(said.strip()[:200])
        except (OSError, subprocess.TimeoutExpired) as error:  # of one; the others go on, and this one is tried again
            log.warning("checkpoints of a run that is gone could not be removed: %s", error)
            return False
        return True

    def _kill(self, process: subprocess.Popen[str], path: str) -> None:
        """End an `rm`; while one does not end, no other is started for the same directory."""
        process.kill()
        try:
            process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            self._stuck[path] = process
        if process.stderr is not None:
            process.stderr.close()


def _is_old(entry: os.DirEntry[str], before: float) -> bool:
    """A directory that looks young may belong to a run the store has forgotten because an old copy was put back."""
    if not entry.is_dir(follow_symlinks=False):
        return False
    facts = entry.stat(follow_symlinks=False)
    # The owner of a directory can give it any time of change, one in the future too; the kernel's own cannot be set.
    return min(facts.st_mtime, facts.st_ctime) < before


def _list(directory: str | Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except FileNotFoundError:
        return
