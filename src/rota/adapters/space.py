"""Is there room for the ledger? The free space of the filesystems that the data directory and the database lie on.

Below the floor nothing new is taken in, so that what is left is there for the ends of what runs. The floor is well
above what ends need: an end takes a few KiB, and jobs that run go on writing their logs and checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

MIB = 1 << 20
LEAST, MOST = 256 * MIB, 4096 * MIB
# Space that comes back must exceed the floor by this much, so that a disk at the floor does not switch back and forth.
BACK = 1.05


def default_floor(size: int) -> int:
    """One hundredth of the filesystem, from 256 MiB to 4 GiB, and never more than a twentieth of a small one."""
    return min(size // 20, max(LEAST, min(MOST, size // 100)))


class FreeSpace:
    """See rota.app.ports.Space. `floor`: in bytes; None = by the size of the filesystem, 0 = no floor."""

    def __init__(self, paths: Iterable[Path], floor: int | None = None) -> None:
        self._paths = tuple(dict.fromkeys(paths))
        self._floor = floor
        self._short = False

    def shortage(self) -> str:
        if self._floor == 0:
            return ""
        found = next(filter(None, map(self._shortage_of, self._paths)), "")
        self._short = bool(found)
        return found

    def _shortage_of(self, path: Path) -> str:
        there = os.statvfs(path)
        free = there.f_bavail * there.f_frsize
        floor = default_floor(there.f_blocks * there.f_frsize) if self._floor is None else self._floor
        if free >= (floor * BACK if self._short else floor):
            return ""
        return (
            f"the disk of {path} has {free / MIB:,.1f} MiB free, below the floor of {floor / MIB:,.1f} MiB: nothing "
            "new is taken in or started until there is room again; what runs goes on, and ends are recorded"
        )
