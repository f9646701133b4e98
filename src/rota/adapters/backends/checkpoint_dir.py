"""Make the checkpoint directory of a run before its command runs, and remove it after if nothing lies in it."""

from __future__ import annotations

import errno
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rota.adapters.backends.task import Account

ACL = "system.posix_acl_access"
ACL_VERSION = 2
# tags and permissions of its entries, as linux/posix_acl.h has them
USER_OBJ, USER, GROUP_OBJ, MASK, OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
ALL, SEARCH, NONE = 7, 1, 0
NO_ID = 0xFFFFFFFF


def make(path: str, parent: str | None, account: Account | None) -> int:
    """It is kept from attempt to attempt, so it may be there; it belongs to whoever runs the command. The server keeps
    the directory above it open, so that its name is found without waiting (see pins). Return a descriptor that keeps
    it so while no server runs."""
    is_other = account is not None and account.foreign
    if parent is not None:
        _make(parent)
        if is_other:
            assert account is not None
            _let_search(parent, account)
    is_new = _make(path)
    if is_other and (is_new or (parent is not None and os.lstat(path).st_uid == os.geteuid())):
        assert account is not None
        os.chown(path, account.uid, account.gid)  # also where whoever made it ended before it was given away
    return os.open(parent or path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def remove_if_empty(held: int, path: str, parent: str | None, account: Account | None) -> None:
    """Most runs leave nothing. A directory of another account that lies beside those of others (an earlier version made
    it) is left to the retention: the account may hold its lock, and everybody's starts would wait with us. `held`: what
    `make` returned."""
    if parent is None and account is not None and account.foreign:
        return
    try:
        if parent is None:
            os.rmdir(path)
        else:
            os.rmdir(os.path.basename(path), dir_fd=held)
    except OSError:
        pass


def _make(path: str) -> bool:
    """Return whether it was not there. That is looked at first: to make one that is there waits for the lock of the
    directory above."""
    if os.path.lexists(path):
        return False
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return False
    return True


def _let_search(path: str, account: Account) -> None:
    """Let this account alone reach what it knows the name of; where the file system has no access lists, its group."""
    entries = [
        (USER_OBJ, ALL, NO_ID),
        (USER, SEARCH, account.uid),
        (GROUP_OBJ, NONE, NO_ID),
        (MASK, SEARCH, NO_ID),
        (OTHER, NONE, NO_ID),
    ]
    try:
        os.setxattr(
            path, ACL, struct.pack("<I", ACL_VERSION) + b"".join(struct.pack("<HHI", *each) for each in entries)
        )
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOSYS):
            raise
        os.chown(path, -1, account.gid)
        os.chmod(path, 0o710)  # noqa: S103 - nobody else is to reach it
