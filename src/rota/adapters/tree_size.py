"""Measure the disk use below a directory whose owner may want to hide some of it.

A tree may be deeper than there are descriptors and have more entries than can be looked at in one go. So one descriptor
is open at a time, every directory is gone through in the order of names, and a measurement that was interrupted goes
on after the last name that it had looked at. No link is followed, also when it is put there meanwhile. Names cost their
owner nothing but the directory that holds them, so those in memory are bounded, of all directories on the way together.
"""

from __future__ import annotations

import errno
import os
import stat
from heapq import nsmallest
from itertools import count
from pathlib import Path

from rota.core.descriptors import SHORTAGE

BLOCK = 512  # bytes, the unit of st_blocks
LEAST = 4096  # bytes that an entry counts as: an empty file takes an inode, of which a disk has a limited number
BATCH = 100_000  # names of one directory that are listed at a time
MOST_KEPT = 32 << 20  # bytes of names of all directories on the way
PER_NAME = 41  # bytes that Python adds to each
LISTED_PER_ENTRY = 8  # names that are listed, for what looking at one entry costs
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Level:
    """A directory on the way down, and how far it was gone through."""

    __slots__ = ("after", "batch", "id", "is_last", "kept", "name")

    def __init__(self, name: bytes, fd: int) -> None:
        self.name, self.id = name, _id(fd)
        self.after = b""  # the last name that was looked at
        self.forget()

    def forget(self) -> None:
        self.batch: list[bytes] = []  # the next names, the first one last
        self.kept = 0  # bytes of them, when they were listed
        self.is_last = False  # there are no others

    def fill(self, fd: int) -> int:
        """List the next names; return how many there are in all."""
        number = count()
        try:
            with os.scandir(fd) as entries:
                # as bytes: a name that is no UTF-8 takes four times as much as a text
                names = (os.fsencode(entry.name) for entry, _ in zip(entries, number, strict=False))
                self.batch = nsmallest(BATCH + 1, (name for name in names if name > self.after))
        except OSError as error:  # it cannot be read
            _must_not_be_short(error)
            self.batch = []
        self.is_last = len(self.batch) <= BATCH
        self.batch = self.batch[:BATCH][::-1]
        self.kept = sum(map(len, self.batch)) + PER_NAME * len(self.batch)
        return next(number)


class TreeSize:
    """`size` is what was seen so far, in bytes of the blocks used on the directory's own disk, at least one block for
    each entry."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._device = 0
        self._levels: list[_Level] = []
        self._begun = False
        self.size = 0

    @property
    def is_whole(self) -> bool:
        return self._begun and not self._levels

    def go_on(self, most: int) -> int:
        """Look at about this many entries more; return what it was in fact. OSError = the place where this stopped is
        not there any more, or nothing can be opened just now."""
        if not self._begun:
            return self._begin() and self.go_on(most)
        fd, walked = self._reopen(), len(self._levels)
        try:
            while self._levels and walked < most:
                level = self._levels[-1]
                if not level.batch and not level.is_last:
                    walked += level.fill(fd) // LISTED_PER_ENTRY
                    self._bound_names()
                if level.batch:
                    fd, walked = self._look(fd, level), walked + 1
                    continue
                self._levels.pop()
                if self._levels:
                    fd = self._climb(fd)
        finally:
            os.close(fd)
            for level in self._levels:
                level.forget()
        return walked

    def _bound_names(self) -> None:
        """Forget those of the directories that are gone on in last; they are listed again then."""
        kept = sum(level.kept for level in self._levels)
        for level in self._levels[:-1]:
            if kept <= MOST_KEPT:
                return
            kept -= level.kept
            level.forget()

    def _begin(self) -> int:
        try:
            fd = os.open(self._path, FOLDER)
        except OSError as error:  # it has gone, or is no directory any more
            _must_not_be_short(error)
            self._begun = True
            return 0
        self._begun = True
        self._device = os.fstat(fd).st_dev
        self._levels.append(_Level(b"", fd))
        os.close(fd)
        return 1

    def _look(self, fd: int, level: _Level) -> int:
        """Count the next entry; return the descriptor of the directory to go on in."""
        level.after = name = level.batch.pop()
        try:
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if found.st_dev != self._device:
                return fd
            self.size += max(LEAST, found.st_blocks * BLOCK)
            if not stat.S_ISDIR(found.st_mode):
                return fd
            below = os.open(name, FOLDER, dir_fd=fd)
        except OSError as error:  # a job removes what it has replaced, and may close a directory to everybody
            _must_not_be_short(error)
            return fd
        os.close(fd)
        self._levels.append(_Level(name, below))
        return below

    def _climb(self, fd: int) -> int:
        """Return the directory above in place of this one; one that was moved meanwhile has another above it."""
        try:
            above = os.open("..", FOLDER, dir_fd=fd)
        except OSError:
            above = self._reopen()
        if _id(above) != self._levels[-1].id:
            os.close(above)
            above = self._reopen()
        os.close(fd)
        return above

    def _reopen(self) -> int:
        fd = -1
        try:
            for level in self._levels:
                below = os.open(level.name, FOLDER, dir_fd=fd) if level.name else os.open(self._path, FOLDER)
                if fd >= 0:
                    os.close(fd)
                fd = below
                if _id(fd) != level.id:
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        except OSError:
            if fd >= 0:
                os.close(fd)
            raise
        return fd


def _must_not_be_short(error: OSError) -> None:
    """What cannot be looked at for want of a descriptor or of memory is looked at another time."""
    if error.errno in SHORTAGE:
        raise error


def _id(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
