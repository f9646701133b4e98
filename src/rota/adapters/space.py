"""Is there room for the ledger? The free space of the filesystems that the data directory and the database lie on.

Below the floor nothing new is taken in, so that what is left is there for the ends of what runs. The floor is well
above what ends need: an end takes a few KiB, and jobs that run go on writing their checkpoints. Inodes have a floor of
their own: empty files take no bytes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rota.adapters.ballast import Ballast, share_kept

MIB = 1 << 20
LEAST, MOST = 256 * MIB, 4096 * MIB
LEAST_INODES, MOST_INODES = 1_000, 100_000
# Space that comes back must exceed the floor by this much, so that a disk at the floor does not switch back and forth.
BACK = 1.05
ONLY_ENDS = "nothing new is taken in or started until there is room again; what runs goes on, and ends are recorded"


def default_floor(size: int) -> int:
    """One hundredth of the filesystem, from 256 MiB to 4 GiB, and never more than a twentieth of a small one."""
    return _share(size, LEAST, MOST)


def inode_floor(count: int) -> int:
    """One hundredth of the filesystem's inodes, from 1,000 to 100,000, and never more than a twentieth of few. 0: it
    has no fixed number of them."""
    return _share(count, LEAST_INODES, MOST_INODES)


def _share(whole: int, least: int, most: int) -> int:
    return min(whole // 20, max(least, min(most, whole // 100)))


class FreeSpace:
    """See rota.app.ports.Space. The ledger lies in the last of `paths`. `floor`: in bytes; None = by the size of the
    filesystem, 0 = no floor, of inodes neither, and no more ballast than spare files."""

    def __init__(self, paths: Iterable[Path], floor: int | None = None, ballast: Ballast | None = None) -> None:
        self._paths = tuple(dict.fromkeys(paths))
        self._floor = floor
        self._ballast = ballast
        self._short = False
        self._counts_inodes: set[Path] = set()  # seen with inodes free, so a 0 means that there are none

    def shortage(self) -> str:
        found = "" if self._floor == 0 else next(filter(None, map(self._shortage_of, self._paths)), "")
        self._short = bool(found)
        if not found and self._ballast is not None:
            self._ballast.keep(self.floor_of(self._paths[-1]))
        return found

    def relieve(self) -> bool:
        return self._ballast is not None and self._ballast.give_up()

    def kept_in_ledger(self) -> int:
        return share_kept(self.floor_of(self._paths[-1]))

    def floor_of(self, path: Path) -> int:
        """Return the floor of the disk that this lies on, in bytes."""
        return self._floor_in(os.statvfs(path))

    def _floor_in(self, there: os.statvfs_result) -> int:
        return default_floor(there.f_blocks * there.f_frsize) if self._floor is None else self._floor

    def _shortage_of(self, path: Path) -> str:
        there = os.statvfs(path)
        free, floor = there.f_bavail * there.f_frsize, self._floor_in(there)
        if self._is_below(free, floor):
            return (
                f"the disk of {path} has {free / MIB:,.1f} MiB free, below the floor of {floor / MIB:,.1f} MiB: "
                f"{ONLY_ENDS}"
            )
        floor = inode_floor(there.f_files)
        if there.f_favail:
            self._counts_inodes.add(path)
        if self._is_below(there.f_favail, floor) and (path in self._counts_inodes or not _can_make_file(path)):
            return (
                f"the disk of {path} has {there.f_favail:,} inodes free (each file takes one), below the floor of "
                f"{floor:,}: {ONLY_ENDS}"
            )
        return ""

    def _is_below(self, free: int, floor: int) -> bool:
        return free < (floor * BACK if self._short else floor)


def _can_make_file(path: Path) -> bool:
    """Return whether a file can be made. Some file systems name a number of inodes and 0 of them free for ever, because
    they do not count them (network, FUSE, btrfs)."""
    try:
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False
