"""The log cap: a log that outgrows it loses its middle, in place, so that the byte offsets readers hold stay true.

The first quarter of the cap is kept (how it began) and the newest half (how it goes on); what lies between is given
back to the file system as a hole. `dropped` records the hole *before* it is made: a reader who looks at the record
after reading the data knows which zeros were never printed. Where holes cannot be made the file is cut back to its
beginning instead, and offsets restart.

A job of the server's own account has the file itself, so the length alone says little: a job can preallocate blocks
beyond the end or inside the hole, and make the log long and short again. So the blocks really used are counted as well,
and those that hold nothing of the log are freed. While the disk is nearly full the cap is 1 MiB more than the log has
then: what is printed costs what was printed before.
"""

# ruff: noqa: SIM105 - contextlib would be one more import in every shim

from __future__ import annotations

import ctypes
import os

from rota.adapters.backends import records
from rota.adapters.backends.logfile import has_room

PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
BLOCK = 4096  # holes are made of whole blocks
GROWTH = 1 << 20  # while the disk is nearly full

libc = ctypes.CDLL(None, use_errno=True)


class LogCap:
    """`least_free`: bytes free on the disk below which the log hardly grows; 0 = that is not looked at, as where what
    writes the log looks itself."""

    def __init__(self, log: int, directory: str, cap_bytes: int, least_free: int = 0) -> None:
        self._log = log
        self._directory = directory
        self.least_free = least_free
        self._most = max(cap_bytes, 4 * BLOCK)
        self._tight = False
        self._hole_end = self._head = 0
        self._set_cap(self._most)

    def _set_cap(self, cap: int) -> None:
        """Bound what is kept. Where the hole begins does not change any more once there is one."""
        self._cap = cap
        if self._hole_end == self._head:
            self._hole_end = self._head = cap // 4 // BLOCK * BLOCK

    def check(self) -> float:
        """Trim when needed; returns how soon to look again, in seconds."""
        facts = os.fstat(self._log)
        size = facts.st_size
        if size < self._hole_end:
            self._forget_hole()
        kept = size - (self._hole_end - self._head)
        self._tighten(kept)
        if kept > self._cap:
            self._trim(size)
            return 0.1
        # Twice: some file systems (XFS) preallocate as much as a growing file has, and give it back by themselves.
        if facts.st_blocks * 512 > 2 * self._cap:
            self._give_back()
            return 0.1
        return 1.0 if kept < self._cap // 2 and not self._tight else 0.1

    def _tighten(self, kept: int) -> None:
        tight = bool(self.least_free) and not has_room(self._log, self.least_free)
        if tight != self._tight:
            self._tight = tight
            self._set_cap(min(self._most, kept + GROWTH) if tight else self._most)

    def settle(self) -> float:
        """Bring the log within its cap when nothing writes to it any more. Returns as `check` does."""
        soon = self.check()
        return soon if soon >= 1.0 else self.check()

    def _trim(self, size: int) -> None:
        end = (size - self._cap // 2) // BLOCK * BLOCK
        if end <= self._hole_end:
            return
        try:
            root = os.path.dirname(os.path.dirname(self._directory))
            records.publish(root, self._directory, "dropped", records.dump({"start": self._head, "end": end}))
        except OSError:
            return  # a full disk: try again soon, and let the job live
        # The whole hole each time, not only what is new: cheap, and right even if an earlier call was cut short.
        if self._punch(end):
            self._hole_end = end
            return
        os.unlink(f"{self._directory}/dropped")
        os.ftruncate(self._log, self._head)
        os.write(self._log, b"\n[... %d bytes dropped by the log cap ...]\n" % (size - self._head))

    def _punch(self, end: int) -> bool:
        args = (ctypes.c_int(PUNCH_HOLE_KEEP_SIZE), ctypes.c_longlong(self._head), ctypes.c_longlong(end - self._head))
        return bool(libc.fallocate64(ctypes.c_int(self._log), *args) == 0)

    def _give_back(self) -> None:
        """Free blocks that hold nothing of the log: inside the hole, and beyond the end. A line that is printed at this
        very moment may be lost; a program that only prints never gets here."""
        if self._hole_end > self._head:
            self._punch(self._hole_end)
        os.ftruncate(self._log, os.fstat(self._log).st_size)

    def _forget_hole(self) -> None:
        """The log was cut to less than where its hole ended: what is in it now is new."""
        self._hole_end = self._head
        self._set_cap(self._cap)
        try:
            os.unlink(f"{self._directory}/dropped")
        except FileNotFoundError:
            pass
