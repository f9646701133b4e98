"""The checkpoint directories of runs: kept for as long as the run is, and then removed.

What lies in one was written by whoever ran the command, perhaps as another account, and perhaps with an eye on a server
that is root: a link in it is removed as a link, never followed, also when it is put there while we are at it, and what
of other people's was moved into it stays (see `remover`).
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from threading import Lock

from rota.adapters import remover
from rota.adapters.looks import Looks
from rota.adapters.tree_size import TreeSize
from rota.app.ports import ACCOUNT_CHECKPOINTS

RUN_ID = re.compile(r"[0-9a-f]{12}")
TO_GO = re.compile(RUN_ID.pattern + re.escape(remover.TO_GO) + "[0-9a-f]{8}")  # its removal was begun
MOST = 200  # removals in one round of those that lie beside each other: a round must end
RM_S = 600.0  # for one tree
KILLED_S = 5.0  # for the end of a removal that was killed; one that waits in the kernel may never end
MOST_STUCK = 10  # such ones at a time, of directories beside each other: each costs a process, and a round its time
MOST_STUCK_OF_ALL = 64
MOST_PURGED = 64  # accounts whose round of removal goes on while others have theirs: each costs a thread
MOST_MEASURED = 10  # likewise of measuring, where each has up to some 60 MB of names
WALKED = 200_000  # files looked at in one round of measuring
log = logging.getLogger(__name__)


def _none(account: int) -> Sequence[tuple[int, int]]:
    return ()


class CheckpointFiles:
    """Each account has a directory for all its runs, and can hold it: what one does in it, others do not wait for."""

    def __init__(self, root: Path, subuids: Callable[[int], Sequence[tuple[int, int]]] = _none) -> None:
        """`subuids` tells the ranges of subordinate ids that an account has."""
        self.root, self._subuids = root, subuids
        self._purging: Looks[int] = Looks("rota-purge-look", MOST_PURGED)
        self._measuring: Looks[tuple[int, dict[str, int | None]]] = Looks("rota-measure-look", MOST_MEASURED)
        self._listing: Looks[list[str]] = Looks("rota-list", 1)
        self._lock = Lock()  # of the listing, and of what it found last
        self._paths: list[str] = []
        self._last = ""  # the next round of measuring begins after it
        self._places: dict[str, _Place] = {}
        self._stuck: dict[str, subprocess.Popen[str]] = {}  # path -> a removal that did not end when it was killed

    def sizes(self) -> Iterator[tuple[str, int | None]]:
        """Return each run that has a directory, with the bytes of the blocks in it. A bounded number of files is looked
        at in one round; the runs left over are None, and the first of the next round. A run that is too large for a
        round counts as what was seen of it so far, or as before if that is larger. Runs of an account whose directory
        is held are None."""
        paths = self._parents()
        for path in self._places.keys() - set(paths):
            del self._places[path]
        left = WALKED
        ahead = [path for path in paths if path > self._last]
        order = (*ahead, *paths[: len(paths) - len(ahead)])
        # also where there is time for all: those that are slow must not have all threads again and again
        self._last = order[0]
        for path in order:
            place = self._places.setdefault(path, _Place(path))
            has_ended = False
            for walked, found in self._measuring.look(path, partial(place.measure, left)):
                has_ended = True
                if left > 0 >= left - walked:
                    self._last = path
                left -= walked
                yield from found.items()
            if not has_ended:
                yield from dict.fromkeys(place.names).items()

    def _parents(self) -> list[str]:
        """Return the directories in which those of runs lie: the root, and that of each account. While the root cannot
        be listed, those that it had before."""
        with self._lock:
            for found in self._listing.look(str(self.root), self._list_parents):
                self._paths = found
            return self._paths or [str(self.root)]

    def _list_parents(self) -> list[str]:
        """The root comes first."""
        accounts = (
            entry.path
            for entry in _list(self.root)
            if entry.name.startswith(ACCOUNT_CHECKPOINTS) and entry.is_dir(follow_symlinks=False)
        )
        return [str(self.root), *sorted(accounts)]

    def purge(self, before: float, gone: Callable[[str], bool]) -> int:
        """Remove the directories that were last added to before this time (epoch s), of runs that are gone. Returns how
        many went; the rest of very many goes in the next rounds."""
        for path, process in list(self._stuck.items()):
            if process.poll() is not None:
                self._stuck.pop(path, None)
        return sum(
            count
            for path in self._parents()
            for count in self._purging.look(path, partial(self._purge_in, path, before, gone))
        )

    def _purge_in(self, parent: str, before: float, gone: Callable[[str], bool]) -> int:
        """Those come first of which nothing has been removed: something of the others may have to stay."""
        tried = count = 0
        old = (entry.path for entry in _runs(parent) if _is_old(entry, before) and gone(entry.name))
        begun = list(islice((entry.path for entry in _list(parent) if TO_GO.fullmatch(entry.name)), MOST))
        for path in chain(old, begun):
            if tried >= MOST or self._is_stuck(parent):
                break
            if _without_mark(path) not in self._stuck:
                tried += 1
                count += self._remove(path)
        return count

    def _is_stuck(self, parent: str) -> bool:
        stuck = list(self._stuck)
        return len(stuck) >= MOST_STUCK_OF_ALL or sum(os.path.dirname(path) == parent for path in stuck) >= MOST_STUCK

    def _remove(self, path: str) -> bool:
        """By a process, which can be left alone where it waits in the kernel."""
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", remover.__file__, self._ids_of(path), path],
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
                raise OSError(said.strip()[:1000])
        except (OSError, subprocess.TimeoutExpired) as error:  # of one; the others go on, and this one is tried again
            log.warning("checkpoints of a run that is gone could not be removed: %s", error)
            return False
        return True

    def _ids_of(self, path: str) -> str:
        """Return whose directories go with this one, as `remover` reads it; "" = everybody's."""
        uid = os.lstat(path).st_uid
        if os.geteuid() != 0 or uid == 0:  # no more than the server may do anyway, or by one who may do anything
            return ""
        return ",".join(f"{first}-{end}" for first, end in [(uid, uid + 1), *self._subuids(uid)])

    def _kill(self, process: subprocess.Popen[str], path: str) -> None:
        """End a removal; while one does not end, no other is started for the same directory."""
        process.kill()
        try:
            process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            self._stuck[_without_mark(path)] = process
        if process.stderr is not None:
            process.stderr.close()


class _Place:
    """A directory in which those of runs lie, and what is known of their sizes. One look at a time uses it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.names: list[str] = []  # of its runs, when they were last listed
        self._next = ""  # where the next round begins
        self._unfinished: dict[str, TreeSize] = {}  # run -> what goes on in a later round
        self._least: dict[str, int] = {}  # run -> what it counts as until it is measured to its end again

    def measure(self, most: int) -> tuple[int, dict[str, int | None]]:
        """Look at about this many entries; return how many there were, and each run with its size (None = it was not
        measured)."""
        paths = {entry.name: entry.path for entry in _runs(self._path)}
        self.names = names = sorted(paths)
        for known in (self._unfinished, self._least):
            for name in known.keys() - paths.keys():
                del known[name]
        found: dict[str, int | None] = dict.fromkeys(names)
        left = most
        ahead = [name for name in names if name >= self._next]
        for name in (*ahead, *names[: len(names) - len(ahead)]):
            if left <= 0:
                break
            found[name], walked = self._measure(name, paths[name], left)
            left -= walked
            if left <= 0:
                self._next = name + "-"
        return most - left, found

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


def _without_mark(path: str) -> str:
    return os.path.join(os.path.dirname(path), os.path.basename(path).partition(remover.TO_GO)[0])


def _is_old(entry: os.DirEntry[str], before: float) -> bool:
    """A directory that looks young may belong to a run the store has forgotten because an old copy was put back."""
    if not entry.is_dir(follow_symlinks=False):
        return False
    facts = entry.stat(follow_symlinks=False)
    # The owner of a directory can give it any time of change, one in the future too; the kernel's own cannot be set.
    return min(facts.st_mtime, facts.st_ctime) < before


def _runs(directory: str | Path) -> Iterator[os.DirEntry[str]]:
    return (entry for entry in _list(directory) if RUN_ID.fullmatch(entry.name))


def _list(directory: str | Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except FileNotFoundError:
        return
