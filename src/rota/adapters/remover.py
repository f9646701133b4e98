"""Remove a directory that somebody else has filled, as root without doing more than they could. Run by path:
`python -I -S remover.py RANGES PATH`.

Root removes anything, so whatever an account has moved into its directory would go, whosever it is. This removes what
lies in directories of the account and of its subordinate ids, which they could remove, too. A directory of anybody else
stays, unless it is empty, and so does the one that it lies in. Each directory is opened before it is looked whose it
is, and a name counts only in the one that is open, so that nothing which is moved meanwhile makes a difference. No link
is followed, and no other file system is entered.

Directories may be nested as deeply, and have as many names, as somebody likes: what is found below the first level is
moved up to it, and a bounded number of names is kept at a time. The directory gets another name before, by which it is
known that it is to go, whatever becomes of this removal.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BATCH = 1000  # names
SHOWN = 200  # letters of a path
MOST_LEFT = 1000  # things that stay; with so many the rest does, too
OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
MOST_NESTED = 100  # levels that are gone through in place, where nothing can be moved up
TO_GO = ".gone."  # after this, in the name of a directory whose removal has begun, come random digits


class Remover:
    def __init__(self, path: str, ranges: Sequence[tuple[int, int]]) -> None:
        """`ranges` are the ids that are its owner's: the first one, and the one beyond the last; none: all ids are."""
        self._above, self._name = os.path.split(path)
        self._ranges = ranges
        self.left: list[str] = []  # what stays, and why

    def remove(self) -> None:
        above = os.open(self._above, OPEN & ~os.O_NOFOLLOW)  # an admin may have put it on another disk
        try:
            if TO_GO not in self._name:
                self._name, before = f"{self._name}{TO_GO}{os.urandom(4).hex()}", self._name
                os.rename(before, self._name, src_dir_fd=above, dst_dir_fd=above)
            self._top = os.open(self._name, OPEN, dir_fd=above)
            try:
                self._device = os.fstat(self._top).st_dev
                self._empty(self._top, 0)
            finally:
                os.close(self._top)
            if not self.left:
                os.rmdir(self._name, dir_fd=above)
        finally:
            os.close(above)

    def _empty(self, directory: int, depth: int) -> None:
        for name, is_dir in self._names(directory):
            self._remove(directory, name, is_dir, depth)

    def _names(self, directory: int) -> Iterator[tuple[str, bool]]:
        """Tell what is in a directory for as long as there is something that does not stay."""
        stay: set[str] = set()
        last: set[str] = set()
        while len(self.left) < MOST_LEFT:
            with os.scandir(directory) as entries:
                new = (each for each in entries if each.name not in stay)
                found = {each.name: each.is_dir(follow_symlinks=False) for each in islice(new, BATCH)}
            if not found:
                return
            for name, is_dir in found.items():
                before = len(self.left)
                if name in last:
                    self._leave(directory, name, "it is there again, or cannot be found")
                else:
                    yield name, is_dir
                if len(self.left) > before:
                    stay.add(name)
            last = set(found)

    def _remove(self, directory: int, name: str, is_dir: bool, depth: int) -> None:
        try:
            if is_dir:
                self._remove_directory(directory, name, depth)
            else:
                os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            pass  # somebody was faster
        except OSError as error:
            self._leave(directory, name, error.strerror or str(error))

    def _remove_directory(self, directory: int, name: str, depth: int) -> None:
        try:
            os.rmdir(name, dir_fd=directory)
        except OSError as error:
            if error.errno not in NOT_EMPTY:
                raise
        else:
            return
        inside = os.open(name, OPEN, dir_fd=directory)
        try:
            if why := self._why_it_stays(inside):
                self._leave(directory, name, why)
            elif directory == self._top or not self._move_up(directory, name, depth):
                before = len(self.left)
                self._empty(inside, depth + 1)
                if len(self.left) == before:
                    os.rmdir(name, dir_fd=directory)
        finally:
            os.close(inside)

    def _move_up(self, directory: int, name: str, depth: int) -> bool:
        """False: it has to be emptied where it is, as its project (a quota) is another."""
        try:
            os.rename(name, f".{os.urandom(8).hex()}", src_dir_fd=directory, dst_dir_fd=self._top)
        except OSError as error:
            if error.errno != errno.EXDEV or depth >= MOST_NESTED:
                raise
            return False
        return True

    def _why_it_stays(self, directory: int) -> str:
        facts = os.fstat(directory)
        if facts.st_dev != self._device:
            return "it is on another file system"
        if self._ranges and not any(first <= facts.st_uid < end for first, end in self._ranges):
            return f"it is a directory of account {facts.st_uid}"
        return ""

    def _leave(self, directory: int, name: str, why: str) -> None:
        path = f"{os.readlink(f'/proc/self/fd/{directory}')}/{name}"
        self.left.append(f"{why}: {path if len(path) <= SHOWN else f'{path[: SHOWN // 2]}...{path[-SHOWN // 2 :]}'!r}")


def parse(ranges: str) -> list[tuple[int, int]]:
    """Read ids such as `1000-1001,100000-165536`."""
    parts = (each.split("-") for each in ranges.split(",") if each)
    return [(int(first), int(end)) for first, end in parts]


def main(ranges: str, path: str) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # of the server's terminal
    remover = Remover(path, parse(ranges))
    try:
        remover.remove()
    except FileNotFoundError:
        return 0
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    if remover.left:
        more = f", and {len(remover.left) - 1} more" if len(remover.left) > 1 else ""
        print(f"{remover.left[0]} stays{more}", file=sys.stderr)
    return 1 if remover.left else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
