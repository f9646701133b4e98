"""The log of an attempt as its supervisor writes it: never with the last of the disk.

A supervisor of root could write into the blocks that a file system reserves for root, and take those that the ledger
needs for the ends of all runs. So it looks at the free space as an ordinary account sees it, and drops what is printed
while there is too little. The program goes on; the log says how much is missing, and where.
"""

from __future__ import annotations

import os

LOOK_EVERY = 1 << 16  # bytes written between two looks at the free space
NO_ROOM = "the disk is nearly full"


class LogFile:
    """`least_free`: bytes that must be free on the disk; 0 = it is not looked at."""

    def __init__(self, fd: int, least_free: int) -> None:
        self._fd, self._least_free = fd, least_free
        self._unlooked = LOOK_EVERY
        self._lost, self._why = 0, ""

    def write(self, output: bytes) -> None:
        if not self._has_room(len(output)):
            self._lost, self._why = self._lost + len(output), NO_ROOM
            return
        self.say_lost()
        self._write(output)

    def say_lost(self) -> None:
        """Say what was dropped since the last time, if there was anything."""
        if self._lost:
            text, self._lost = f"\n[... {self._lost} bytes of output were lost: {self._why} ...]\n", 0
            self._write(text.encode())

    def _write(self, output: bytes) -> None:
        while output:
            try:
                output = output[os.write(self._fd, output) :]
            except OSError as error:  # a full disk must not stop the program
                self._lost, self._why = self._lost + len(output), str(error.strerror)
                return

    def _has_room(self, size: int) -> bool:
        if not self._least_free:
            return True
        self._unlooked += size
        if self._unlooked >= LOOK_EVERY or self._lost:
            self._unlooked = 0
            return has_room(self._fd, self._least_free)
        return True


def has_room(fd: int, least_free: int) -> bool:
    there = os.fstatvfs(fd)
    return there.f_bavail * there.f_frsize >= least_free
