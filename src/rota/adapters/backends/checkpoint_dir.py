"""Make the checkpoint directory of a run before its command runs, and remove it after if nothing lies in it."""

# ruff: noqa: SIM105 - contextlib would be one more import in every shim

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rota.adapters.backends.task import Account

PARENT_MODE = 0o711  # its account reaches what is inside, and cannot list it (app/checkpoint_dir.py says why)


def make(path: str, parent: str | None, account: Account | None) -> None:
    """It is kept from attempt to attempt, so it may be there; it belongs to whoever runs the command."""
    if parent is not None:
        try:
            os.mkdir(parent, 0o700)
        except FileExistsError:
            pass
        os.chmod(parent, PARENT_MODE)  # whatever the umask is
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if parent is None or os.lstat(path).st_uid != os.geteuid():
            return  # else whoever made it ended before it was given away; nobody else can make one there
    if account is not None and account.privileged:
        os.chown(path, account.uid, account.gid)


def remove_if_empty(path: str, parent: str | None, account: Account | None) -> None:
    """Most runs leave nothing. A directory of another account that lies beside those of others (an earlier version made
    it) is left to the retention: the account may hold its lock, and everybody's starts would wait with us."""
    if parent is None and account is not None and account.foreign:
        return
    for each in (path, parent):
        if each is None:
            return
        try:
            os.rmdir(each)
        except OSError:
            return
