"""The directory a server keeps its things in, and the lock that says whose it is.

The lock is a flock on an open file: the kernel drops it when the process dies, however it dies, so that a leftover file
never blocks a start. The text in the file is for people, and says whether the one who locked it is still there.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from rota.adapters.ownership import Unfit, judge

log = logging.getLogger(__name__)

APART = b"checkpoints of each account apart\n"  # a line of the lock file
PINNED = ("leases/ended", "metrics", "installation-id", "zygote.log")
ORPHANED_S = 2.0  # how long a lock outlives its server at most


class DataDirError(Exception):
    """The data directory cannot be used; the message says why and what to do."""


class DataDirBusy(DataDirError):
    """Another server holds it."""


class DataDir:
    """Held for as long as this object is open."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd: int | None = lock_fd
        self._pins: list[int] = []

    def pin(self) -> None:
        """Keep open what the server looks up while it runs. Else, once memory was short, each would be looked up anew,
        which waits for the lock of this directory, and accounts that can search it can hold that."""
        for name in PINNED:
            with suppress(FileNotFoundError):
                self._pins.append(os.open(self.path / name, os.O_PATH | os.O_CLOEXEC))

    @property
    def is_apart(self) -> bool:
        """Whether no server has used it that makes checkpoint directories side by side since `note_apart` was called.
        Each server writes the text of its lock anew, so an older one leaves that out."""
        return self._lock_fd is not None and _is_apart(self._lock_fd)

    def note_apart(self) -> None:
        if self._lock_fd is not None and not self.is_apart:
            os.write(self._lock_fd, APART)

    def close(self) -> None:
        """Let the next server in. The file stays: removing it would let two servers lock two different files."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
        while self._pins:
            os.close(self._pins.pop())


def open_data_dir(path: str | os.PathLike[str]) -> DataDir:
    where = Path(path).expanduser().absolute()
    try:
        str(where).encode()
    except UnicodeEncodeError:
        raise DataDirError(f"cannot use {str(where)!a} as the data directory: its name is not UTF-8") from None
    try:
        # a server of root's runs jobs as other accounts, which must be able to reach their checkpoints below it
        mode = 0o711 if os.geteuid() == 0 else 0o700
        if not where.is_dir():
            _must_be_fit(where)
            _make(where, mode)
        lock_fd = _open_lock(where)
    except OSError as error:
        raise DataDirError(f"cannot use {where} as the data directory: {error.strerror}") from error
    try:
        _lock(lock_fd)
        _sign(lock_fd)
    except BlockingIOError as error:
        holder, is_killed = _holder(lock_fd), _waits_though_killed(_signed(lock_fd)[0])
        os.close(lock_fd)
        if is_killed:
            raise DataDirBusy(
                f"a server that was killed{holder} still has {where}: its threads wait in the kernel, most likely for "
                'a lock that another account holds; see "A lock that an account holds" in docs/operations.md'
            ) from error
        raise DataDirBusy(
            f"another Rota server{holder} is using {where}; stop it or choose another --data-dir"
        ) from error
    except OSError as error:
        os.close(lock_fd)
        raise DataDirError(f"cannot lock {where}: {error.strerror}") from error
    return DataDir(where, lock_fd)


def _open_lock(where: Path) -> int:
    """Judge the directory and open the lock in it. Where everybody may make directories (/tmp), another account may
    have made it first, or may take its own away while it is judged and put it back. So it is held open, all of the path
    must be there while it is judged, and the path must lead to what is held: a way that belongs to root or to this
    account, nobody else can exchange, so that whatever is opened by the path later is in the directory judged here."""
    directory = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
    try:
        tolerated = _must_be_fit(where, must_exist=True)
        held = os.fstat(directory)
        if held.st_uid not in (0, os.geteuid()) or not os.path.samestat(held, os.stat(where)):
            raise DataDirError(
                f"cannot use {where} as the data directory: another account exchanged it meanwhile; choose a directory "
                "below one in which nobody else may write"
            )
        if tolerated is not None:
            log.warning("the data directory %s is as safe as a directory above it: %s", where, tolerated)
        _must_be_ours(where, directory)
        # os.open sets O_CLOEXEC: a job that outlives the server must not keep the lock alive
        return os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=directory)
    finally:
        os.close(directory)


def _make(where: Path, mode: int) -> None:
    """Make it and what is missing above it, where nobody else may write, whatever the umask."""
    for parent in reversed(where.parents):
        if not parent.exists():
            parent.mkdir(mode=0o755, exist_ok=True)
    try:
        where.mkdir(mode=mode)
    except FileExistsError:
        if not where.is_dir():
            raise
    else:
        where.chmod(mode)  # whatever the umask took away


def _must_be_fit(where: Path, *, must_exist: bool = False) -> Unfit | None:
    """Return what is to be said of it nevertheless."""
    unfit = judge(where, must_exist=must_exist)
    if unfit is not None and not unfit.is_tolerated:
        raise DataDirError(f"cannot use {where} as the data directory: {unfit}")
    return unfit


def _must_be_ours(where: Path, directory: int) -> None:
    """A directory that is there keeps its mode, and must be empty or have been used by Rota before."""
    there = set(os.listdir(directory)) - {"rota.sock"}  # systemd makes that before the first start
    if there and not there & {"lock", "rota.db"}:
        raise DataDirError(f"{where} is not empty and no data directory of Rota's; choose another --data-dir")


def _lock(lock_fd: int) -> None:
    """A server that was killed while it started a process may have left its lock to that one, until it has become
    another program: a moment, for which one waits. BlockingIOError: somebody has it."""
    give_up = time.monotonic() + ORPHANED_S
    while True:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pid = _signed(lock_fd)[0]
            if not pid.isdigit() or os.path.exists(f"/proc/{pid}") or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _sign(lock_fd: int) -> None:
    apart = APART if _is_apart(lock_fd) and os.geteuid() == 0 else b""
    os.ftruncate(lock_fd, 0)
    started = time.strftime("%Y-%m-%d %H:%M:%S %z")
    os.lseek(lock_fd, 0, os.SEEK_SET)
    os.write(lock_fd, f"{os.getpid()} {started}\n".encode() + apart)


def _is_apart(lock_fd: int) -> bool:
    return APART in os.pread(lock_fd, 200, 0)


def _holder(lock_fd: int) -> str:
    """' (pid 123, since ...)'; empty when it has not signed yet."""
    pid, since = _signed(lock_fd)
    return f" (pid {pid}, since {since})" if pid.isdigit() else ""


def _waits_though_killed(pid: str) -> bool:
    """Return whether the first thread of that process has ended and others have not: they keep what it had open."""
    try:
        return pid.isdigit() and _state(Path(f"/proc/{pid}/stat")) == "Z" and len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:  # it has gone, or this is no Linux
        return False


def _state(stat: Path) -> str:
    return stat.read_text(errors="replace").rpartition(")")[2].split()[0]


def _signed(lock_fd: int) -> tuple[str, str]:
    """By whom, and since when."""
    line = os.pread(lock_fd, 100, 0).decode("ascii", "replace").partition("\n")[0]
    pid, _, since = line.strip().partition(" ")
    return pid, since
