"""What the server keeps of the disk for the time when jobs have taken the rest: blocks and inodes.

The ledger has room within itself (see rota.adapters.store.room). One larger file lies on its disk besides; it is given
up when the ledger cannot be opened, or written in spite of that, though any process may be the first to take what comes
free. Small files in `spare/` become records of attempts, such as the order to stop one, without an inode or a block
more: nobody else can take what is moved. All are made again when there is room.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path

from rota.adapters.backends import records

log = logging.getLogger(__name__)

MOST_BYTES = 8 << 20  # some thousand ends
SHARE_OF_FLOOR = 8
SPARES = 128
NAME = "rota.ballast"


def share_kept(floor: int) -> int:
    """Return how many bytes are kept in one place for a full disk, where the floor is that many."""
    return min(MOST_BYTES, floor // SHARE_OF_FLOOR)


class Ballast:
    """`root`: the data directory; `ledger`: the directory of the database."""

    def __init__(self, root: Path, ledger: Path) -> None:
        self._spares = root / records.SPARE
        self._file = ledger / NAME
        self._making = threading.Lock()
        # What is open is found without the lock of its directory, which accounts that can search that can hold.
        self._held = self._held_spares = -1
        self._checked = False  # what an earlier process left was looked at
        self._said = ""

    def keep(self, floor: int) -> None:
        """Make what is missing, where the floor is that many bytes. Call it only while there is room, from any thread.
        What cannot be made is logged: the server goes on without it."""
        if not self._making.acquire(blocking=False):
            return  # another thread is making it
        try:
            self._keep(share_kept(floor))
            self._said = ""
        except OSError as error:
            if error.errno not in records.FULL and str(error) != self._said:
                self._said = str(error)
                log.error("no room can be set aside for the time when the disk is full: %s", error)
        finally:
            self._making.release()

    def give_up(self) -> bool:
        """Return whether there is more room now."""
        try:
            self._file.unlink()
        except FileNotFoundError:
            return False
        finally:
            self._let_go()
        return True

    def _let_go(self) -> None:
        held, self._held = self._held, -1
        if held >= 0:
            os.close(held)

    def give_up_all(self) -> bool:
        """The same with the spare files: to open the ledger takes files as well as bytes."""
        names = os.listdir(self._spares) if self._spares.exists() else []
        for name in names:
            (self._spares / name).unlink(missing_ok=True)
        return self.give_up() or bool(names)

    def _keep(self, size: int) -> None:
        if not self._checked:
            self._remove_torn(size)
            self._checked = True
        if size and not self._is_there():
            self._make(size)
            self._is_there()  # and held
        try:
            there = set(os.listdir(self._spares))
        except FileNotFoundError:
            self._spares.mkdir(mode=0o700)
            there = set()
        if self._held_spares < 0:
            self._held_spares = os.open(self._spares, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        missing = (str(number) for number in itertools.count() if str(number) not in there)
        for name in itertools.islice(missing, max(0, SPARES - len(there))):
            records.make_spare(f"{self._spares}/{name}")

    def _is_there(self) -> bool:
        if self._held >= 0 and not os.fstat(self._held).st_nlink:
            self._let_go()  # somebody removed it
        if self._held < 0:
            with suppress(FileNotFoundError):
                self._held = os.open(self._file, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        return self._held >= 0

    def close(self) -> None:
        self._let_go()
        if self._held_spares >= 0:
            os.close(self._held_spares)
            self._held_spares = -1

    def _remove_torn(self, size: int) -> None:
        """Remove what a process that was killed while making it left too small, so that it is made again."""
        with suppress(FileNotFoundError):
            if self._file.lstat().st_size < size:
                self._file.unlink()
        for name in os.listdir(self._spares) if self._spares.exists() else ():
            path = self._spares / name
            if name.isdigit() and path.is_file() and not records.is_spare(str(path)):
                path.unlink(missing_ok=True)

    def _make(self, size: int) -> None:
        fd = os.open(self._file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            with suppress(FileNotFoundError):
                self._file.unlink()
            if error.errno != errno.EOPNOTSUPP:
                raise
        finally:
            os.close(fd)
