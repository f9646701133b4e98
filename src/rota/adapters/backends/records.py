"""The files of an attempt: their names, what is in them, and how each comes into being at once or not at all.

    attempts/<id>/lock     held (flock) by the supervisor for the attempt's whole life; says who, which boot and cgroup
    attempts/<id>/pid      once the tasks exist, before any of them runs the command
    attempts/<id>/stop     an order to end, written by the server
    attempts/<id>/exit     the end; final. Written only when no process of the attempt lives
    attempts/<id>/log      what it printed;  `dropped` says which bytes the log cap took out of the middle
    live/<id>              a link to the lock: there until the server forgets the attempt

A directory appears under attempts/ by a rename of a private one in which the lock is already held, so a claim is
never seen unlocked, and of two claimants exactly one succeeds. Imported by zygote and shims: cheap standard modules
only.
"""

# ruff: noqa: SIM105 - contextlib would be one more import in every shim

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_RECORD = 1 << 20
MOST = 1e15  # of a number in a record; no time is as far away. It rules out NaN and infinities, too
PRIVATE = "tmp"  # claims in the making; on the same file system, for the rename
CLAIMED = (errno.ENOTEMPTY, errno.EEXIST)


def attempt_dir(root: str, attempt_id: str) -> str:
    return f"{root}/attempts/{attempt_id}"


class Prepared:
    """A claim waiting for its attempt: a private directory in which the lock is held already. One rename makes it
    true."""

    def __init__(self, path: str, lock: int) -> None:
        self.path, self.lock = path, lock


def prepare(root: str, facts: Mapping[str, Any]) -> Prepared:
    path = f"{root}/{PRIVATE}/{os.getpid()}.{os.urandom(6).hex()}"
    os.mkdir(path, 0o700)
    lock = os.open(f"{path}/lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(lock, dump(facts))
    return Prepared(path, lock)


def claim(root: str, prepared: Prepared, attempt_id: str) -> bool:
    """Become the attempt's one supervisor. False: it was claimed before, and `prepared` can be used for another."""
    try:
        os.rename(prepared.path, attempt_dir(root, attempt_id))
    except OSError as error:
        if error.errno in CLAIMED:
            return False
        raise
    link_live(root, attempt_id)
    return True


def link_live(root: str, attempt_id: str) -> None:
    try:
        os.link(f"{root}/attempts/{attempt_id}/lock", f"{root}/live/{attempt_id}")
    except FileExistsError:
        pass


def discard(private: str) -> None:
    """Remove a claim directory that lost, or whose maker died."""
    for name in os.listdir(private):
        os.unlink(f"{private}/{name}")
    os.rmdir(private)


def publish(directory: str, name: str, content: bytes, *, durable: bool = False, replace: bool = True) -> bool:
    """Make `name` appear whole. With replace=False an existing file stays and False is returned."""
    temporary = (
        f"{directory}/.{name}.{os.getpid()}.{os.urandom(4).hex()}"
        if not replace
        else f"{directory}/.{name}.{os.getpid()}"
    )
    fd = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        view = content
        while view:
            view = view[os.write(fd, view) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    if replace:
        os.rename(temporary, f"{directory}/{name}")
        return True
    try:
        os.link(temporary, f"{directory}/{name}")
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    return True


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
