"""The files of an attempt: their names, what is in them, and how each comes into being at once or not at all.

    attempts/<id>/lock     held (flock) by the supervisor for the attempt's whole life; says who, which boot and cgroup
    attempts/<id>/pid      once the tasks exist, before any of them runs the command
    attempts/<id>/stop     an order to end, written by the server
    attempts/<id>/stuck    what did not end some seconds after SIGKILL, written by the supervisor
    attempts/<id>/exit     the end; final. Written only when no process of the attempt lives
    attempts/<id>/.exit    the file that becomes `exit`: made and allocated with the claim, so that an end needs no room
    attempts/<id>/log      what it printed;  `dropped` says which bytes the log cap took out of the middle
    live/<id>              a link to the lock: there until the server forgets the attempt
    attempts/.<pid>.<n>    a claim that its maker prepares, or an old attempt that it removes;  live/.<pid>.<n> its link
    installation-id        a name of this data directory, in the environment of all that it starts
    spare/<n>              files like `.exit` that become any other record when the disk is full (see ballast)

An attempt appears by a rename of a private directory in which the lock is already held, so a claim is never seen
unlocked, and of two claimants exactly one succeeds. Unless the disk is full, no start, end or stop renames from one
directory to another. On each file system the kernel allows one such rename at a time, and any account can make its own
last long, by listing one of the two directories slowly. A rename within a directory that no other account can search
waits for none of that. Imported by zygote and shims: cheap standard modules only.
"""

# ruff: noqa: SIM105 - contextlib would be one more import in every shim

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_RECORD = 1 << 20
MOST = 1e15  # of a number in a record; no time is as far away. It rules out NaN and infinities, too
PRIVATE = re.compile(r"\.[0-9]+\.[0-9a-f]{12}")
OLD_PRIVATE = "tmp"  # where earlier versions prepared claims
CLAIMED = (errno.ENOTEMPTY, errno.EEXIST)
FULL = (errno.ENOSPC, errno.EDQUOT)
NO_PROCESS = (errno.EAGAIN, errno.ENOMEM)  # what a fork or a thread says that cannot be had
# of what the server or the machine has, so they say nothing of the order
SHORT = (*FULL, errno.EMFILE, errno.ENFILE, *NO_PROCESS)
SHORT_OF = {
    errno.EMFILE: "the server has too many files open",
    errno.ENFILE: "the machine has too many files open",
    errno.EAGAIN: "the machine, or all jobs on it together, have as many processes as they may",
    errno.ENOMEM: "the machine, or all jobs on it together, have no memory left for another process",
}
SPARE = "spare"
INSTALLATION = "installation-id"
SPARE_BYTES = 4096


def attempt_dir(root: str, attempt_id: str) -> str:
    return f"{root}/attempts/{attempt_id}"


def make_installation_id(root: str) -> None:
    """Give the data directory a name of its own, if it has none. Two servers can give the same id to two runs."""
    if not installation_id(root):
        publish(root, root, INSTALLATION, os.urandom(8).hex().encode())


def installation_id(root: str) -> str:
    """Return the name of the data directory; "" = it has none."""
    try:
        fd = os.open(f"{root}/{INSTALLATION}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            return ""
        raise
    try:
        text = os.read(fd, 100).decode("ascii", "replace").strip()
    finally:
        os.close(fd)
    return text if len(text) == 16 and text.isalnum() and text.isascii() else ""


class Shortage(OSError):
    """The machine is short of something that the error number does not name; the text does."""


def shortage(error: BaseException) -> str:
    """Return in words what there was too little of for an attempt to be begun; "" = that was not the reason."""
    if isinstance(error, Shortage):
        return f"could not be started: {error}"
    if not isinstance(error, OSError) or error.errno not in SHORT:
        return ""
    # of a disk the error says which; of a process it may name a program that has nothing to do with it
    return f"could not be started: {SHORT_OF.get(error.errno) or f'the server has no room on its disk ({error})'}"


class Prepared:
    """A claim waiting for its attempt: a private directory in which the lock is held already, and a link to that. One
    rename makes it true."""

    def __init__(self, path: str, live: str, lock: int) -> None:
        self.path, self.live, self.lock = path, live, lock


def private_name() -> str:
    """Return a new name that is no attempt's, for what is made or removed under attempts/ and live/."""
    return f".{os.getpid()}.{os.urandom(6).hex()}"


def is_private(name: str) -> bool:
    return PRIVATE.fullmatch(name) is not None


def prepare(root: str, facts: Mapping[str, Any]) -> Prepared:
    name = private_name()
    path, live = attempt_dir(root, name), f"{root}/live/{name}"
    os.mkdir(path, 0o700)
    lock = -1
    try:
        lock = os.open(f"{path}/lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(lock, dump(facts))
        os.link(f"{path}/lock", live)
        make_spare(f"{path}/.exit")
    except OSError:  # no room: leave what there is to others
        discard(path, live)
        if lock >= 0:
            os.close(lock)
        raise
    return Prepared(path, live, lock)


def make_spare(path: str) -> None:
    """Make a file that can become a record without an inode or a block more."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, SPARE_BYTES)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def claim(root: str, prepared: Prepared, attempt_id: str) -> bool:
    """Become the attempt's one supervisor. False: it was claimed before, and `prepared` can be used for another."""
    try:
        os.rename(prepared.path, attempt_dir(root, attempt_id))
    except OSError as error:
        if error.errno in CLAIMED:
            return False
        raise
    # A rename, as all that follows the claim: on some file systems a new link takes an inode, and there may be none.
    os.rename(prepared.live, f"{root}/live/{attempt_id}")
    return True


def discard(path: str, live: str) -> None:
    """Remove a claim that lost, or whose maker died: its directory and its link, as far as they are there."""
    try:
        os.unlink(live)
    except FileNotFoundError:
        pass
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return
    for name in names:
        os.unlink(f"{path}/{name}")
    os.rmdir(path)


def publish(
    root: str, directory: str, name: str, content: bytes, *, durable: bool = False, replace: bool = True
) -> bool:
    """Make `name` appear whole in a directory of the data directory `root`, on a full disk by means of a spare file.
    With replace=False an existing file stays and False is returned."""
    temporary = f"{directory}/.{name}.{os.getpid()}" + ("" if replace else f".{os.urandom(4).hex()}")
    if not _take(f"{directory}/.{name}", temporary, content, durable=durable):
        try:
            _write(temporary, content, os.O_CREAT | os.O_TRUNC, durable=durable)
        except OSError as error:
            if error.errno not in FULL or not _take_any(root, temporary, content, durable=durable):
                raise
    if replace:
        os.rename(temporary, f"{directory}/{name}")
        return True
    try:
        os.link(temporary, f"{directory}/{name}")
    except FileExistsError:
        os.unlink(temporary)
        return False
    except OSError as error:
        if error.errno not in FULL or os.path.lexists(f"{directory}/{name}"):
            raise
        os.rename(temporary, f"{directory}/{name}")  # a link takes an inode here, and there is none
        return True
    os.unlink(temporary)
    return True


def _take_any(root: str, temporary: str, content: bytes, *, durable: bool) -> bool:
    """Write to one of the spare files of the data directory."""
    pool = f"{root}/{SPARE}"
    try:
        names = os.listdir(pool)
    except OSError:
        return False
    return any(_take(f"{pool}/{name}", temporary, content, durable=durable) for name in names)


def is_spare(path: str) -> bool:
    """Return whether this is a file that `make_spare` made whole. Anything else is not ours to write to."""
    try:
        facts = os.lstat(path)
    except OSError:
        return False
    private = facts.st_uid == os.geteuid() and not facts.st_mode & 0o077 and facts.st_nlink == 1
    return stat.S_ISREG(facts.st_mode) and private and facts.st_size == SPARE_BYTES


def _take(spare: str, temporary: str, content: bytes, *, durable: bool) -> bool:
    """Write to a spare file, if it is there and large enough. It is moved first, so that only one gets it."""
    if len(content) > SPARE_BYTES or not is_spare(spare):
        return False
    try:
        os.rename(spare, temporary)
    except OSError:
        return False
    try:
        # All of it: what is shorter would have to be cut, and JSON may end in spaces.
        _write(temporary, content.ljust(SPARE_BYTES), 0, durable=durable)
    except OSError as error:
        if error.errno not in FULL:
            raise
        os.unlink(temporary)  # it has holes, as the copy of a spare file may
        return False
    return True


def _write(path: str, content: bytes, flags: int, *, durable: bool) -> None:
    fd = os.open(path, flags | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while content:
            content = content[os.write(fd, content) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def read(path: str) -> dict[str, Any] | None:
    """Return a record, or None when it is not there. One that is there but cannot be read is empty: a rename rules out
    torn files, but a power cut, a failing disk and people do not. So each field has to be checked by its reader."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            return {}
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return {}
        content = os.read(fd, MAX_RECORD)
    finally:
        os.close(fd)
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def is_whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -MOST < value < MOST


def locked(root: str, attempt_id: str) -> bool | None:
    """Is the supervisor alive? None when there is no such attempt. A shared try-lock, so that two who look do not see
    each other."""
    try:
        fd = os.open(f"{root}/attempts/{attempt_id}/lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def dump(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record).encode()
